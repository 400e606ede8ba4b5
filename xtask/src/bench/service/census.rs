//! A count of what processes hold: memory, threads, descriptors.

use std::{
    fs,
    time::{Duration, Instant},
};

use floe_lab::sched::process_totals;

use super::stand::Stand;
use crate::task_error::{Outcome, TaskError};

/// What all processes of a stand hold at one time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Census {
    /// Their memory: the sum of `Pss`.
    pub(super) pss_bytes: u64,
    /// Their threads.
    pub(super) threads: usize,
    /// The number of processes.
    pub(super) processes: usize,
    /// Their open descriptors.
    pub(super) descriptors: usize,
}

impl Census {
    /// Counts.
    pub(super) fn take(stand: &Stand) -> Outcome<Self> {
        let mut census = Self::default();
        for process in stand.processes()? {
            let folder = format!("/proc/{}", process.pid);
            let rollup = fs::read_to_string(format!("{folder}/smaps_rollup")).unwrap_or_default();
            let pss = rollup
                .lines()
                .find_map(|line| line.strip_prefix("Pss:")?.split_whitespace().next()?.parse::<u64>().ok());
            census.pss_bytes += pss.ok_or(TaskError::new(format!("{folder}/smaps_rollup has no Pss")))? << 10;
            census.threads += fs::read_dir(format!("{folder}/task"))?.count();
            census.descriptors += fs::read_dir(format!("{folder}/fd"))?.count();
            census.processes += 1;
        }
        Ok(census)
    }
}

/// How often the threads of all processes went to sleep, each time after a wake-up.
pub(super) struct WakeUps {
    started: Instant,
    sleeps: u64,
}

impl WakeUps {
    /// Begins to count.
    pub(super) fn begin(stand: &Stand) -> Outcome<Self> {
        Ok(Self { started: Instant::now(), sleeps: sleeps(stand)? })
    }

    /// The number since then, for each minute.
    pub(super) fn per_minute(&self, stand: &Stand) -> Outcome<f64> {
        let minutes = self.started.elapsed().max(Duration::from_millis(1)).as_secs_f64() / 60.0;
        Ok(sleeps(stand)?.saturating_sub(self.sleeps) as f64 / minutes)
    }
}

fn sleeps(stand: &Stand) -> Outcome<u64> {
    let processes = stand.processes()?;
    // A process may end in between.
    let totals = processes.iter().filter_map(|process| process_totals(process.pid).ok());
    Ok(totals.flat_map(std::collections::BTreeMap::into_values).map(|thread| thread.sleep_count).sum())
}
