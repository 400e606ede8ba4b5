//! The kernel's per-thread counts, which need neither tracing nor privileges.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::Result;
use crate::error::ErrorContext;

/// The totals of one thread since its start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadTotals {
    /// Its name.
    pub name: String,
    /// Running time in nanoseconds.
    pub running_ns: u64,
    /// Time runnable but not running: wakeup and preemption latency together, in nanoseconds.
    pub waiting_ns: u64,
    /// How often it was scheduled.
    pub slice_count: u64,
    /// How often it went to sleep.
    pub sleep_count: u64,
}

impl ThreadTotals {
    /// Reads `/proc/PID/task/TID`; `None` if the thread is gone.
    fn read(task: &Path) -> Option<Self> {
        let text = fs::read_to_string(task.join("schedstat")).ok()?;
        let mut numbers = text.split_whitespace().map(|number| number.parse::<u64>());
        let mut next = || numbers.next()?.ok();
        let (running_ns, waiting_ns, slice_count) = (next()?, next()?, next()?);
        let status = fs::read_to_string(task.join("status")).ok()?;
        let sleeps = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        Some(Self {
            name: fs::read_to_string(task.join("comm")).ok()?.trim_end().to_owned(),
            running_ns,
            waiting_ns,
            slice_count,
            sleep_count: sleeps.and_then(|number| number.trim().parse().ok()).unwrap_or(0),
        })
    }

    /// The increase since `before`.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            name: self.name.clone(),
            running_ns: self.running_ns.saturating_sub(before.running_ns),
            waiting_ns: self.waiting_ns.saturating_sub(before.waiting_ns),
            slice_count: self.slice_count.saturating_sub(before.slice_count),
            sleep_count: self.sleep_count.saturating_sub(before.sleep_count),
        }
    }
}

/// The totals of all threads of a process.
pub fn process_totals(pid: u32) -> Result<BTreeMap<i32, ThreadTotals>> {
    let tasks = format!("/proc/{pid}/task");
    let entries = fs::read_dir(&tasks).context(|| format!("cannot read {tasks}"))?;
    Ok(entries
        .flatten()
        .filter_map(|entry| {
            let tid = entry.file_name().to_str()?.parse().ok()?;
            Some((tid, ThreadTotals::read(&entry.path())?))
        })
        .collect())
}

/// The increase of each thread's totals between two readings; new threads count from zero.
pub fn totals_between(
    before: &BTreeMap<i32, ThreadTotals>,
    after: &BTreeMap<i32, ThreadTotals>,
) -> BTreeMap<i32, ThreadTotals> {
    let nothing = ThreadTotals::default();
    after.iter().map(|(&tid, totals)| (tid, totals.since(before.get(&tid).unwrap_or(&nothing)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_and_some_work_show_in_the_totals() {
        let pid = std::process::id();
        let own = rustix::thread::gettid().as_raw_nonzero().get();
        let before = process_totals(pid).unwrap();
        let worked_ns = || {
            let clock = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
            clock.tv_sec * 1_000_000_000 + clock.tv_nsec
        };
        let begin_ns = worked_ns();
        while worked_ns() < begin_ns + 30_000_000 {
            std::hint::black_box(0);
        }
        // On a busy machine, a sleep can end before the thread has left the CPU, so the kernel does not count every
        // sleep.
        (0..10).for_each(|_| std::thread::sleep(std::time::Duration::from_millis(2)));
        let after = process_totals(pid).unwrap();
        let totals = &totals_between(&before, &after)[&own];
        assert!(totals.sleep_count >= 2 && totals.slice_count >= 2, "{totals:?}");
        assert!(totals.running_ns >= 30_000_000, "{totals:?}");
    }

    #[test]
    fn a_process_that_is_gone_is_an_error() {
        assert!(process_totals(4_194_999).is_err());
    }
}
