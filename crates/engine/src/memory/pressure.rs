//! Memory pressure: whether memory is short.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

use floe_sync::Mutex;

/// How long memory pressure is assumed to last after it was last observed.
const PRESSURE_LASTS: Duration = Duration::from_millis(250);

/// The least interval between two queries of the kernel, which sums up counters of all CPUs for its answer.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// Memory is short if threads stall on memory for more than one part in `STALLED_PART` of the time.
const STALLED_PART: u32 = 50;

/// The kernel's pressure stall information for the whole machine.
const MACHINE: &str = "/proc/pressure/memory";

/// The kernel's statistics of memory.
const MEMORY: &str = "/proc/meminfo";

/// Memory is ample while programs can have one part in `AMPLE_PART` of it, and scarce from one part in `SCARCE_PART` on.
const AMPLE_PART: u64 = 4;
const SCARCE_PART: u64 = 8;

/// Memory pressure. Memory is short if the kernel's pressure stall information says that threads of the same control
/// group (or else of the machine) often stall on memory, or if page allocations of this process were slow while memory
/// was not ample.
///
/// Stall information reports pressure before any thread of this process has waited. It lets best-effort allocations
/// give up in time. Slow allocations alone prove little: in a virtual machine that gets its memory from the host, they
/// are also slow while memory is ample.
pub(crate) struct MemoryPressure {
    started: Instant,
    /// Memory is short until this time, in milliseconds since the start.
    until_ms: AtomicU64,
    /// Threads stalled until this time.
    stalled_until_ms: AtomicU64,
    stalls: Option<File>,
    memory: Option<File>,
    last: Mutex<Option<Look>>,
}

/// An answer of the kernel.
#[derive(Clone, Copy)]
struct Look {
    at: Instant,
    stalled: Duration,
}

impl MemoryPressure {
    /// Creates the pressure of the machine, or of the control group of this process.
    pub(crate) fn new() -> Self {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let own = groups.lines().find_map(|line| line.strip_prefix("0::"));
        let of_group = own.map(|path| format!("/sys/fs/cgroup{path}/memory.pressure"));
        let first = |paths: &[&str]| paths.iter().find_map(|path| File::open(path).ok());
        Self { memory: File::open(MEMORY).ok(), ..Self::of(first(&[of_group.as_deref().unwrap_or(MACHINE), MACHINE])) }
    }

    /// Creates the pressure that `stalls` reports, a file in the form of the kernel's `memory.pressure`. Without a
    /// file, only [`note`](Self::note) reports pressure.
    pub(crate) fn of(stalls: Option<File>) -> Self {
        let (until_ms, stalled_until_ms) = (AtomicU64::new(0), AtomicU64::new(0));
        let (started, last) = (Instant::now(), Mutex::new(None));
        let pressure = Self { started, until_ms, stalled_until_ms, stalls, memory: None, last };
        pressure.look();
        pressure
    }

    /// Notes that a page allocation was slow.
    pub(crate) fn note(&self) {
        if self.stalls.is_none() || !self.is_ample() {
            self.until_ms.fetch_max(self.after_now_ms(), Relaxed);
        }
    }

    /// Sets whether memory is short, until the next observation.
    #[cfg(all(test, not(feature = "shuttle")))]
    pub(crate) fn set_short(&self, is_short: bool) {
        self.until_ms.store(if is_short { u64::MAX } else { 0 }, Relaxed);
    }

    /// Whether memory is short, or was until a moment ago.
    pub(crate) fn is_short(&self) -> bool {
        self.look();
        self.now_ms() < self.until_ms.load(Relaxed)
    }

    /// Whether the machine has much free memory. `false` if that is not known.
    pub(crate) fn is_ample(&self) -> bool {
        !self.stalls_now() && self.memory().is_some_and(|(total, available)| available >= total / AMPLE_PART)
    }

    /// Whether other processes need the memory that this process could free.
    pub(crate) fn is_scarce(&self) -> bool {
        self.stalls_now() || self.memory().is_some_and(|(total, available)| available < total / SCARCE_PART)
    }

    fn stalls_now(&self) -> bool {
        self.look();
        self.now_ms() < self.stalled_until_ms.load(Relaxed)
    }

    /// The memory of the machine, and how much of it programs can have, in KiB.
    fn memory(&self) -> Option<(u64, u64)> {
        let mut bytes = [0; 256];
        let len = self.memory.as_ref()?.read_at(&mut bytes, 0).ok()?;
        let text = std::str::from_utf8(&bytes[..len]).ok()?;
        let field =
            |name| text.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok());
        Some((field("MemTotal:")?, field("MemAvailable:")?))
    }

    /// Queries the kernel, unless a thread is doing so or just did.
    fn look(&self) {
        let (Some(stalls), Some(mut last)) = (&self.stalls, self.last.try_lock()) else { return };
        let at = Instant::now();
        if last.is_some_and(|last| at - last.at < LOOK_INTERVAL) {
            return;
        }
        let Some(stalled) = stalled_time(stalls) else { return };
        let before = last.replace(Look { at, stalled });
        if before.is_some_and(|before| stalled.saturating_sub(before.stalled) * STALLED_PART > at - before.at) {
            let until_ms = self.after_now_ms();
            self.until_ms.fetch_max(until_ms, Relaxed);
            self.stalled_until_ms.fetch_max(until_ms, Relaxed);
        }
    }

    fn after_now_ms(&self) -> u64 {
        self.now_ms() + PRESSURE_LASTS.as_millis() as u64
    }

    fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }
}

/// The total time that some thread stalled on memory, since the machine or its control group began.
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
        assert!(!pressure.is_short(), "stalls before the start do not count");
        thread::sleep(LOOK_INTERVAL * 2);
        tell(5_000_100);
        assert!(!pressure.is_short(), "an occasional stall");
        thread::sleep(LOOK_INTERVAL * 2);
        tell(8_000_000);
        assert!(pressure.is_short());
        tell(0);
        thread::sleep(LOOK_INTERVAL * 2);
        assert!(pressure.is_short(), "memory was short a moment ago");
        thread::sleep(PRESSURE_LASTS);
        assert!(!pressure.is_short());
    }

    #[test]
    fn without_stall_information_only_noted_pressure_counts() {
        let pressure = MemoryPressure::of(None);
        assert!(!pressure.is_short());
        pressure.note();
        assert!(pressure.is_short());
    }

    #[test]
    fn ample_and_scarce_memory_follow_available_memory() {
        let told = tempfile::NamedTempFile::new().expect("a file");
        let memory = File::open(told.path()).expect("ours");
        let pressure = MemoryPressure { memory: Some(memory), ..MemoryPressure::of(None) };
        for (text, is_ample, is_scarce) in [
            ("MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable:  250 kB\nBuffers: 1 kB\n", true, false),
            ("MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable:  249 kB\nBuffers: 1 kB\n", false, false),
            ("MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable:  124 kB\nBuffers: 1 kB\n", false, true),
            ("MemTotal:  1000 kB\nMemFree: 999 kB\n", false, false),
        ] {
            told.as_file().set_len(0).expect("ours");
            told.as_file().write_all_at(text.as_bytes(), 0).expect("ours");
            assert_eq!((pressure.is_ample(), pressure.is_scarce()), (is_ample, is_scarce), "{text}");
        }
        pressure.note();
        assert!(!pressure.is_scarce(), "a slow allocation alone is no sign of it");
    }

    #[test]
    fn a_slow_allocation_is_no_sign_while_memory_is_ample() {
        for (available, stalls, is_short) in [(500, true, false), (100, true, true), (500, false, true)] {
            let file = |text: &str| {
                let file = tempfile::tempfile().expect("a file");
                file.write_all_at(text.as_bytes(), 0).expect("ours");
                file
            };
            let stalls = stalls.then(|| file("some avg10=0.00 avg60=0.00 avg300=0.00 total=7\n"));
            let memory = file(&format!("MemTotal: 1000 kB\nMemAvailable: {available} kB\n"));
            let pressure = MemoryPressure { memory: Some(memory), ..MemoryPressure::of(stalls) };
            pressure.note();
            assert_eq!(pressure.is_short(), is_short, "{available} of 1000 KiB");
        }
    }
}
