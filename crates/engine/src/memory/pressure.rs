//! Whether memory is short.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

/// So long after memory was seen to be short, it is still taken to be.
pub(crate) const LASTS: Duration = Duration::from_millis(250);

/// The kernel is asked no more often than this: its answer adds up what each CPU knows.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// Memory is short where some thread has waited for it one part in so many of the time.
const STALLED_PART: u32 = 50;

/// Where the kernel tells how long threads have waited for memory, in the whole machine.
const MACHINE: &str = "/proc/pressure/memory";

/// Whether memory is short: where getting pages was slow, as told by who got them, or where threads of the same control
/// group, or else of the machine, wait for memory much of the time, as told by the kernel (pressure stall information).
///
/// The second tells it before anybody here has waited: a page that is only wanted if it costs no waiting is not asked for
/// then.
pub(crate) struct MemoryPressure {
    started: Instant,
    /// Memory is short until this time, in milliseconds since the start.
    until_ms: AtomicU64,
    stalls: Option<File>,
    last: Mutex<Option<Look>>,
}

/// What the kernel said, and when.
#[derive(Clone, Copy)]
struct Look {
    at: Instant,
    stalled: Duration,
}

impl MemoryPressure {
    /// The pressure that this process is under.
    pub(crate) fn new() -> Self {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let own = groups.lines().find_map(|line| line.strip_prefix("0::"));
        let of_group = own.map(|path| format!("/sys/fs/cgroup{path}/memory.pressure"));
        let first = |paths: &[&str]| paths.iter().find_map(|path| File::open(path).ok());
        Self::of(first(&[of_group.as_deref().unwrap_or(MACHINE), MACHINE]))
    }

    /// The pressure that a file tells of, in the form of the kernel's; none but what is noted without one.
    pub(crate) fn of(stalls: Option<File>) -> Self {
        let pressure = Self { started: Instant::now(), until_ms: AtomicU64::new(0), stalls, last: Mutex::new(None) };
        pressure.look();
        pressure
    }

    /// Notes that getting pages was slow.
    pub(crate) fn note(&self) {
        self.until_ms.fetch_max(self.now_ms() + LASTS.as_millis() as u64, Relaxed);
    }

    /// Whether memory is short, or was a moment ago.
    pub(crate) fn is_short(&self) -> bool {
        self.look();
        self.now_ms() < self.until_ms.load(Relaxed)
    }

    /// Asks the kernel, unless somebody does or just did.
    fn look(&self) {
        let (Some(stalls), Ok(mut last)) = (&self.stalls, self.last.try_lock()) else { return };
        let at = Instant::now();
        if last.is_some_and(|last| at - last.at < LOOK_INTERVAL) {
            return;
        }
        let Some(stalled) = stalled_time(stalls) else { return };
        let before = last.replace(Look { at, stalled });
        if before.is_some_and(|before| stalled.saturating_sub(before.stalled) * STALLED_PART > at - before.at) {
            self.note();
        }
    }

    fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }
}

/// How long some thread has waited for memory, since the machine or its group began.
fn stalled_time(stalls: &File) -> Option<Duration> {
    let mut bytes = [0; 256];
    let len = stalls.read_at(&mut bytes, 0).ok()?;
    let text = std::str::from_utf8(&bytes[..len]).ok()?;
    let total_us = text.strip_prefix("some ")?.lines().next()?.rsplit_once("total=")?.1;
    total_us.parse().ok().map(Duration::from_micros)
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn threads_that_wait_for_memory_show_that_it_is_short() {
        let told = tempfile::NamedTempFile::new().expect("a file");
        let tell = |stalled_us: u64| {
            let text = format!("some avg10=0.00 avg60=0.00 avg300=0.00 total={stalled_us}\nfull avg10=0.00 total=7\n");
            told.as_file().set_len(0).expect("ours");
            told.as_file().write_all_at(text.as_bytes(), 0).expect("ours");
        };
        tell(5_000_000);
        let pressure = MemoryPressure::of(Some(File::open(told.path()).expect("ours")));
        assert!(!pressure.is_short(), "what was before says nothing");
        thread::sleep(LOOK_INTERVAL * 2);
        tell(5_000_100);
        assert!(!pressure.is_short(), "a wait now and then");
        thread::sleep(LOOK_INTERVAL * 2);
        tell(8_000_000);
        assert!(pressure.is_short());
        tell(0);
        thread::sleep(LOOK_INTERVAL * 2);
        assert!(pressure.is_short(), "it was a moment ago");
        thread::sleep(LASTS);
        assert!(!pressure.is_short());
    }

    #[test]
    fn without_the_kernel_s_word_what_was_noted_counts() {
        let pressure = MemoryPressure::of(None);
        assert!(!pressure.is_short());
        pressure.note();
        assert!(pressure.is_short());
    }
}
