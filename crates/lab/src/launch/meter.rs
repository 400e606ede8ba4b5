//! Measures the threads of a launch by the means that the machine permits.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::path::PathBuf;

use serde::Serialize;

use super::outcome::{Latency, Launch};
use super::variant::Decompressors;
use crate::machine::Undo;
use crate::sched::{NamePattern, Schedule, ThreadTotals, WorkSchedule, process_totals, totals_between};
use crate::trace::{Collector, CollectorOptions, Trace};
use crate::{Error, Result};

/// The method of measuring scheduling latency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tier {
    /// Kernel tracing of every switch and wakeup: needs root.
    Tracing,
    /// The kernel's totals for each thread: wakeup and preemption latency together, no single waits, no kernel workers.
    Counting,
}

/// Measures by the best available method.
#[derive(Debug)]
pub(crate) struct Meter {
    collector: Option<Collector>,
    pub(crate) tier: Tier,
    pub(crate) notes: Vec<String>,
}

/// The state at the beginning of a launch.
#[derive(Debug)]
pub(crate) struct LaunchStart {
    is_traced: bool,
    server: Option<(u32, BTreeMap<i32, ThreadTotals>)>,
}

impl Meter {
    /// Tries tracing first, unless counting is requested.
    pub(crate) fn new(undo: &Undo, tier: Option<Tier>) -> Result<Self> {
        if tier == Some(Tier::Counting) {
            return Ok(Self { collector: None, tier: Tier::Counting, notes: Vec::new() });
        }
        match Collector::new(undo, CollectorOptions::default()) {
            Ok(collector) => {
                let missing = collector.missing_events().join(", ");
                let notes = if missing.is_empty() { Vec::new() } else { vec![format!("this kernel has no {missing}")] };
                Ok(Self { collector: Some(collector), tier: Tier::Tracing, notes })
            }
            Err(error) if tier == Some(Tier::Tracing) => Err(error),
            Err(error) => {
                let note =
                    format!("{error}; measured by the kernel's per-thread counts: no single waits, no kernel workers");
                Ok(Self { collector: None, tier: Tier::Counting, notes: vec![note] })
            }
        }
    }

    /// The file by which other processes add marks to the recording; `None` without tracing.
    pub(crate) fn marker(&self) -> Option<PathBuf> {
        self.collector.as_ref().map(Collector::marker)
    }

    pub(crate) fn begin(&mut self, is_traced: bool, server_pid: Option<u32>) -> Result<LaunchStart> {
        let server = match server_pid {
            Some(pid) => Some((pid, process_totals(pid)?)),
            None => None,
        };
        let is_traced = is_traced && self.collector.is_some();
        if let Some(collector) = &mut self.collector {
            if is_traced { collector.start()? } else { collector.rest()? }
        }
        Ok(LaunchStart { is_traced, server })
    }

    /// Completes the launch of `reader_pid`, whose totals were read at its exit; returns the trace if there is one.
    pub(crate) fn end(
        &mut self,
        begun: &LaunchStart,
        reader_pid: u32,
        reader_totals: Option<&ThreadTotals>,
        decompressors: &Decompressors,
        launch: &mut Launch,
    ) -> Result<Option<Trace>> {
        let trace = match &mut self.collector {
            Some(collector) if begun.is_traced => Some(collector.stop()?),
            _ => None,
        };
        launch.is_traced = trace.is_some();
        let after = match &begun.server {
            Some((pid, before)) => {
                let after =
                    process_totals(*pid).map_err(|_| Error::new("the process that reads the image has died"))?;
                Some((*pid, totals_between(before, &after)))
            }
            None => None,
        };
        match &trace {
            Some(trace) => fill_traced(trace, after.as_ref().map(|(pid, _)| *pid), reader_pid, decompressors, launch),
            None => fill_counted(after.as_ref().map(|(_, totals)| totals), reader_totals, decompressors, launch),
        }
        Ok(trace)
    }
}

fn fill_traced(
    trace: &Trace,
    server: Option<u32>,
    reader_pid: u32,
    decompressors: &Decompressors,
    launch: &mut Launch,
) {
    let schedule = Schedule::new(trace);
    launch.lost_records = trace.lost;
    launch.unexplained_switches = schedule.unexplained_count;
    launch.restored_switches = schedule.restored_count;
    launch.reader = latency_of(&schedule, &schedule.descendants(reader_pid.cast_signed()), None);
    let server_tids: Option<Vec<i32>> = server.map(|pid| {
        let mut tids: HashSet<i32> = process_totals(pid).unwrap_or_default().into_keys().collect();
        // Threads that existed only within the launch.
        tids.extend(schedule.descendants(pid.cast_signed()));
        tids.into_iter().collect()
    });
    launch.server = server_tids.as_ref().map(|tids| latency_of(&schedule, tids, None));
    launch.decompression = match decompressors {
        Decompressors::Threads(pattern) => server_tids.as_ref().map(|tids| latency_of(&schedule, tids, Some(pattern))),
        Decompressors::Process => launch.server.clone(),
        Decompressors::Workqueue(pattern) => Some(Latency::of_work(&WorkSchedule::new(trace, pattern))),
        Decompressors::Caller => None,
    };
    launch.discarded = reason_to_discard(trace, launch);
}

fn fill_counted(
    server: Option<&BTreeMap<i32, ThreadTotals>>,
    reader: Option<&ThreadTotals>,
    decompressors: &Decompressors,
    launch: &mut Launch,
) {
    let sum = |pattern: Option<&NamePattern>| {
        let mut latency = Latency::default();
        let threads = server?.values().filter(|totals| pattern.is_none_or(|pattern| pattern.matches(&totals.name)));
        threads.for_each(|totals| latency.add_totals(totals));
        Some(latency)
    };
    launch.server = sum(None);
    launch.decompression = match decompressors {
        Decompressors::Threads(pattern) => sum(Some(pattern)),
        Decompressors::Process => launch.server.clone(),
        Decompressors::Workqueue(_) | Decompressors::Caller => None,
    };
    if let Some(totals) = reader {
        launch.reader.add_totals(totals);
    }
}

fn latency_of(schedule: &Schedule, tids: &[i32], pattern: Option<&NamePattern>) -> Latency {
    let mut latency = Latency::default();
    for thread in tids.iter().filter_map(|tid| schedule.threads.get(tid)) {
        if pattern.is_none_or(|pattern| pattern.matches(&thread.name)) {
            latency.add_thread(thread);
        }
    }
    latency
}

/// Discards a launch that lost trace records, or has more than a few waits of unknown length.
fn reason_to_discard(trace: &Trace, launch: &Launch) -> Option<String> {
    if !trace.is_complete() {
        return Some(format!("{} trace records were lost", trace.lost));
    }
    let measured = launch.decompression.as_ref().or(launch.server.as_ref()).unwrap_or(&launch.reader);
    let (valid, invalid) = (measured.waits_ns.len() as u64, measured.invalid_count);
    let is_too_many = invalid > 2 && invalid * 50 > valid;
    is_too_many
        .then(|| format!("{invalid} of {} waits have unknown lengths: trace events are missing", valid + invalid))
}

impl fmt::Display for Tier {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Tracing => "kernel tracing (every switch and wakeup)",
            Self::Counting => "kernel counts for each thread (totals only)",
        })
    }
}
