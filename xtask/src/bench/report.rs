//! What is printed of the measurements of one image.

use std::{collections::BTreeMap, thread};

use serde_json::{Value, json};

use super::{
    results::Results,
    setting::{Contest, Subject},
};
use crate::complaint::{Complaint, Outcome};

/// The measurements of one image and what they were made with.
pub(super) struct Report {
    title: String,
    /// The size of what was read, in bytes.
    bytes: u64,
    /// Name and version, in the order of the table; the first is Floe.
    contenders: Vec<(String, String)>,
    absent: Vec<String>,
    results: Results,
}

impl Report {
    /// The measurements of a subject.
    pub(super) fn new(
        subject: &Subject,
        contenders: Vec<(String, String)>,
        absent: Vec<String>,
        results: Results,
    ) -> Outcome<Self> {
        let bytes = subject.image.path.metadata()?.len();
        Ok(Self::titled(subject.title.clone(), bytes, contenders, absent, results))
    }

    /// The measurements of what the title names, which has this many bytes.
    pub(super) fn titled(
        title: String,
        bytes: u64,
        contenders: Vec<(String, String)>,
        absent: Vec<String>,
        results: Results,
    ) -> Self {
        Self { title, bytes, contenders, absent, results }
    }

    /// Prints all reports, and fails if a run did.
    pub(super) fn print(reports: &[Self], contest: &Contest) -> Outcome {
        if contest.json {
            println!("{:#}", Value::from_iter(reports.iter().map(|report| report.json(contest.rounds))));
        } else {
            reports.iter().for_each(|report| report.print_table(contest.rounds));
        }
        let failures: Vec<String> = reports.iter().flat_map(|report| report.results.failures().to_vec()).collect();
        Complaint::from_lines("runs failed", &failures)
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
