//! Whether CPUs are short.

use std::{
    fs::File,
    os::unix::fs::FileExt,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use crate::threads::scheduling_sys::allowed_cpus;

/// The kernel is asked no more often than this. Its answer takes about a microsecond.
const LOOK_INTERVAL: Duration = Duration::from_micros(500);

/// After this long without a look, what was seen before says nothing any more.
const FORGOTTEN: Duration = Duration::from_secs(1);

/// How often the CPUs that the process may run on are counted.
const CPU_COUNT_INTERVAL: Duration = Duration::from_secs(1);

/// A look takes the average one part in so many of the way up, and of the way down: a crowd is seen at once, and has to
/// be gone for some milliseconds.
const UP_PARTS: usize = 4;
const DOWN_PARTS: usize = 16;

/// Threads are counted in parts of this.
const WHOLE: usize = 1 << 10;

/// CPUs are short from so much more threads on than there are CPUs, and until there are no more than that.
const MARGIN: usize = WHOLE / 2;

/// Where the kernel tells how many threads run or are ready to.
const RUNNABLE: &str = "/proc/loadavg";

/// Whether more threads of others want to run than there are CPUs that this process may use: the programs that read
/// count as others too.
///
/// Where the kernel does not tell, CPUs are taken to be short.
#[derive(Debug)]
pub(crate) struct CpuPressure {
    runnable: Option<File>,
    /// Threads of ours that have something to do.
    working: AtomicUsize,
    is_high: AtomicBool,
    last: Mutex<Option<Look>>,
}

/// What the kernel said of late.
#[derive(Debug)]
struct Look {
    at: Instant,
    /// The average number of runnable threads of others, in parts of [`WHOLE`].
    others: usize,
    cpu_count: usize,
    cpus_counted: Instant,
}

/// A thread of ours that has something to do, until this is dropped.
pub struct Working<'pressure>(&'pressure CpuPressure);

impl CpuPressure {
    /// The pressure that this machine is under.
    pub(crate) fn new() -> Self {
        Self::of(File::open(RUNNABLE).ok())
    }

    /// The pressure that a file tells of, in the form of the kernel's.
    pub(crate) fn of(runnable: Option<File>) -> Self {
        Self { runnable, working: AtomicUsize::new(0), is_high: AtomicBool::new(true), last: Mutex::new(None) }
    }

    /// Notes that the calling thread has something to do.
    pub(crate) fn work(&self) -> Working<'_> {
        self.working.fetch_add(1, Relaxed);
        Working(self)
    }

    /// Whether CPUs were short when that was last looked at.
    pub(crate) fn is_high(&self) -> bool {
        self.is_high.load(Relaxed)
    }

    /// Whether CPUs were seen to be short: not where nobody has looked yet.
    pub(crate) fn was_seen_high(&self) -> bool {
        self.is_high() && self.last.try_lock().is_ok_and(|last| last.is_some())
    }

    /// Asks the kernel, unless somebody does or just did; gives whether what it says has changed
    /// [`is_high`](Self::is_high).
    pub(crate) fn look(&self) -> bool {
        let (Some(runnable), Ok(mut last)) = (&self.runnable, self.last.try_lock()) else { return false };
        let at = Instant::now();
        if last.as_ref().is_some_and(|last| at - last.at < LOOK_INTERVAL) {
            return false;
        }
        let Some(count) = runnable_count(runnable) else { return false };
        let others = count.saturating_sub(self.working.load(Relaxed)) * WHOLE;
        let before = last.take().filter(|last| at - last.at < FORGOTTEN);
        let (cpu_count, cpus_counted) = match &before {
            Some(before) if at - before.cpus_counted < CPU_COUNT_INTERVAL => (before.cpu_count, before.cpus_counted),
            _ => (allowed_cpus().len(), at),
        };
        let others = match before.map_or(others, |before| before.others) {
            average if others > average => average + (others - average) / UP_PARTS,
            average => average - (average - others) / DOWN_PARTS,
        };
        let was_high = self.is_high();
        let is_high = others > cpu_count * WHOLE + if was_high { 0 } else { MARGIN };
        *last = Some(Look { at, others, cpu_count, cpus_counted });
        self.is_high.store(is_high, Relaxed);
        is_high != was_high
    }
}

impl Drop for Working<'_> {
    fn drop(&mut self) {
        self.0.working.fetch_sub(1, Relaxed);
    }
}

/// How many threads of the machine run or are ready to.
fn runnable_count(file: &File) -> Option<usize> {
    let mut bytes = [0; 128];
    let len = file.read_at(&mut bytes, 0).ok()?;
    let text = std::str::from_utf8(&bytes[..len]).ok()?;
    text.split(' ').nth(3)?.split_once('/')?.0.parse().ok()
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn more_threads_of_others_than_cpus_are_a_pressure() {
        let told = tempfile::NamedTempFile::new().expect("a file");
        let pressure = CpuPressure::of(Some(File::open(told.path()).expect("ours")));
        // Whether the look changed what is thought, and what is thought then.
        let look = |count: usize| {
            told.as_file().set_len(0).expect("ours");
            told.as_file().write_all_at(format!("0.38 1.74 4.44 {count}/80 32083\n").as_bytes(), 0).expect("ours");
            thread::sleep(LOOK_INTERVAL * 2);
            (pressure.look(), pressure.is_high())
        };
        let cpus = allowed_cpus().len();
        assert!(pressure.is_high() && !pressure.was_seen_high(), "nothing is known yet");
        assert_eq!(look(cpus), (true, false));
        assert_eq!(look(cpus + 1), (false, false), "now and then one too many");
        assert_eq!(look(cpus + 8), (true, true));
        assert!(pressure.was_seen_high());
        assert_eq!(look(cpus), (false, true), "it was a moment ago");
        assert!((0..200).any(|_| look(cpus.saturating_sub(1)) == (true, false)));
        let working: Vec<_> = (0..8).map(|_| pressure.work()).collect();
        assert_eq!(look(cpus + 8), (false, false), "these are ours");
        drop(working);
        assert_eq!(look(cpus + 8), (true, true));
        assert!(!pressure.look(), "that was just now");
    }

    #[test]
    fn without_the_kernel_s_word_cpus_are_short() {
        let nonsense = tempfile::NamedTempFile::new().expect("a file");
        for told in [None, Some(File::open(nonsense.path()).expect("ours"))] {
            let pressure = CpuPressure::of(told);
            assert!(!pressure.look());
            assert!(pressure.is_high());
        }
    }
}
