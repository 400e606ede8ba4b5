//! CPU pressure: whether more threads are runnable than there are CPUs.

use std::{
    fs::File,
    os::unix::fs::FileExt,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    time::{Duration, Instant},
};

use floe_sync::Mutex;

use crate::threads::scheduling_sys::allowed_cpus;

/// The least interval between two queries of the kernel. A query takes about a microsecond.
const LOOK_INTERVAL: Duration = Duration::from_micros(500);

/// Observations older than this no longer count.
const LOOK_AGE_MAX: Duration = Duration::from_secs(1);

/// The interval at which the CPUs of this process are counted.
const CPU_COUNT_INTERVAL: Duration = Duration::from_secs(1);

/// Each query moves the average up by 1 / `UP_PARTS` of the difference, or down by 1 / `DOWN_PARTS`: a surge is
/// detected at once, and its end only after some milliseconds.
const UP_PARTS: usize = 4;
const DOWN_PARTS: usize = 16;

/// Numbers of threads are fixed-point numbers in units of 1 / `WHOLE`.
const WHOLE: usize = 1 << 10;

/// Pressure begins when the runnable threads exceed the CPUs by this margin, and ends when they no longer exceed them.
const MARGIN: usize = WHOLE / 2;

/// The kernel reports the number of runnable threads here.
const RUNNABLE: &str = "/proc/loadavg";

/// CPU pressure: whether more threads of others are runnable than there are CPUs for this process. The programs that
/// read from the mount count as others.
///
/// If the kernel does not report the number of runnable threads, pressure is assumed.
#[derive(Debug)]
pub(crate) struct CpuPressure {
    runnable: Option<File>,
    /// Threads of this process that are busy.
    working: AtomicUsize,
    is_high: AtomicBool,
    last: Mutex<Option<Look>>,
}

/// The kernel's recent answers.
#[derive(Debug)]
struct Look {
    at: Instant,
    /// The average number of runnable threads of others, in units of 1 / [`WHOLE`].
    others: usize,
    cpu_count: usize,
    cpus_counted: Instant,
}

/// Counts a thread of this process as busy until it is dropped.
pub struct Working<'pressure>(&'pressure CpuPressure);

impl CpuPressure {
    /// Creates the pressure of this machine.
    pub(crate) fn new() -> Self {
        Self::of(File::open(RUNNABLE).ok())
    }

    /// Creates the pressure that a file in the form of the kernel's `loadavg` reports.
    pub(crate) fn of(runnable: Option<File>) -> Self {
        Self { runnable, working: AtomicUsize::new(0), is_high: AtomicBool::new(true), last: Mutex::new(None) }
    }

    /// Counts the calling thread as busy until the result is dropped.
    pub(crate) fn work(&self) -> Working<'_> {
        self.working.fetch_add(1, Relaxed);
        Working(self)
    }

    /// Whether there was pressure at the last query; true before the first one.
    pub(crate) fn is_high(&self) -> bool {
        self.is_high.load(Relaxed)
    }

    /// Whether pressure was observed; false before the first query.
    pub(crate) fn was_seen_high(&self) -> bool {
        self.is_high() && self.last.try_lock().is_some_and(|last| last.is_some())
    }

    /// Queries the kernel, unless a thread is doing so or just did. Returns whether [`is_high`](Self::is_high) has
    /// changed.
    pub(crate) fn look(&self) -> bool {
        let (Some(runnable), Some(mut last)) = (&self.runnable, self.last.try_lock()) else { return false };
        let at = Instant::now();
        if last.as_ref().is_some_and(|last| at - last.at < LOOK_INTERVAL) {
            return false;
        }
        let Some(count) = runnable_count(runnable) else { return false };
        let others = count.saturating_sub(self.working.load(Relaxed)) * WHOLE;
        let before = last.take().filter(|last| at - last.at < LOOK_AGE_MAX);
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

/// The number of runnable threads of the machine.
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
    fn more_runnable_threads_of_others_than_cpus_are_pressure() {
        let told = tempfile::NamedTempFile::new().expect("a file");
        let pressure = CpuPressure::of(Some(File::open(told.path()).expect("ours")));
        // Returns whether the query changed the state, and the state.
        let look = |count: usize| {
            told.as_file().set_len(0).expect("ours");
            told.as_file().write_all_at(format!("0.38 1.74 4.44 {count}/80 32083\n").as_bytes(), 0).expect("ours");
            thread::sleep(LOOK_INTERVAL * 2);
            (pressure.look(), pressure.is_high())
        };
        let cpus = allowed_cpus().len();
        assert!(pressure.is_high() && !pressure.was_seen_high(), "nothing is known yet");
        assert_eq!(look(cpus), (true, false));
        assert_eq!(look(cpus + 1), (false, false), "one thread too many is within the margin");
        assert_eq!(look(cpus + 8), (true, true));
        assert!(pressure.was_seen_high());
        assert_eq!(look(cpus), (false, true), "pressure was high a moment ago");
        assert!((0..200).any(|_| look(cpus.saturating_sub(1)) == (true, false)));
        let working: Vec<_> = (0..8).map(|_| pressure.work()).collect();
        assert_eq!(look(cpus + 8), (false, false), "these threads are ours");
        drop(working);
        assert_eq!(look(cpus + 8), (true, true));
        assert!(!pressure.look(), "the last query was just now");
    }

    #[test]
    fn without_the_kernel_s_counts_pressure_is_assumed() {
        let nonsense = tempfile::NamedTempFile::new().expect("a file");
        for told in [None, Some(File::open(nonsense.path()).expect("ours"))] {
            let pressure = CpuPressure::of(told);
            assert!(!pressure.look());
            assert!(pressure.is_high());
        }
    }
}
