//! The report of an image's measurements.

use std::{collections::BTreeMap, thread};

use serde_json::{Value, json};

use super::{
    results::Results,
    setting::{Contest, Subject},
};
use crate::task_error::{Outcome, TaskError};

/// The measurements of one image and their conditions.
pub(super) struct Report {
    title: String,
    /// The number of bytes read.
    bytes: u64,
    /// Names and versions in the order of the table; the first is Floe.
    contenders: Vec<(String, String)>,
    absent: Vec<String>,
    results: Results,
}

impl Report {
    /// Creates the report of a subject.
    pub(super) fn new(
        subject: &Subject,
        contenders: Vec<(String, String)>,
        absent: Vec<String>,
        results: Results,
    ) -> Outcome<Self> {
        let bytes = subject.image.path.metadata()?.len();
        Ok(Self::titled(subject.title.clone(), bytes, contenders, absent, results))
    }

    /// Creates a report with this title and number of bytes.
    pub(super) fn titled(
        title: String,
        bytes: u64,
        contenders: Vec<(String, String)>,
        absent: Vec<String>,
        results: Results,
    ) -> Self {
        Self { title, bytes, contenders, absent, results }
    }

    /// Prints all reports; fails if a run failed.
    pub(super) fn print(reports: &[Self], contest: &Contest) -> Outcome {
        if contest.json {
            println!("{:#}", Value::from_iter(reports.iter().map(|report| report.json(contest.rounds))));
        } else {
            reports.iter().for_each(|report| report.print_table(contest.rounds));
        }
        let failures: Vec<String> = reports.iter().flat_map(|report| report.results.failures().to_vec()).collect();
        TaskError::from_lines("runs failed", &failures)
    }

    fn names(&self) -> Vec<String> {
        self.contenders.iter().map(|(name, _)| name.clone()).collect()
    }

    fn print_table(&self, rounds: u64) {
        let (mib, cpus) = (self.bytes >> 20, cpu_count());
        println!("{}: {mib} MiB; medians of {rounds} rounds on {cpus} CPUs", self.title);
        for (name, version) in &self.contenders {
            println!("  {name}: {version}");
        }
        for reason in &self.absent {
            println!("  skipped: {reason}");
        }
        println!("\n{}", self.results.table(&self.names()));
    }

    fn json(&self, rounds: u64) -> Value {
        json!({
            "subject": self.title,
            "bytes": self.bytes,
            "rounds": rounds,
            "cpus": cpu_count(),
            "versions": self.contenders.iter().cloned().collect::<BTreeMap<_, _>>(),
            "absent": self.absent,
            "results": self.results.json(&self.names()),
            "failures": self.results.failures(),
        })
    }
}

fn cpu_count() -> usize {
    thread::available_parallelism().map_or(0, usize::from)
}
