//! Workloads.

mod compare;
mod finds;
mod opened_files;
mod random_reads;
mod stats;
mod whole_tree;

use std::{borrow::Cow, path::Path, time::Duration};

use serde::{Deserialize, Serialize};

use self::opened_files::{OpenedFiles, Pattern};
use super::listing::ListedFile;
use crate::task_error::Outcome;

/// Whether larger or smaller values are better.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Better {
    /// Larger values.
    More,
    /// Smaller values.
    Less,
}

/// One result of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Measurement {
    /// The metric with its unit: `p99 µs`.
    pub(super) metric: Cow<'static, str>,
    /// The value.
    pub(super) value: f64,
    /// Which values are better.
    pub(super) better: Better,
}

impl Measurement {
    const fn more(metric: &'static str, value: f64) -> Self {
        Self { metric: Cow::Borrowed(metric), value, better: Better::More }
    }

    pub(super) const fn less(metric: &'static str, value: f64) -> Self {
        Self { metric: Cow::Borrowed(metric), value, better: Better::Less }
    }
}

/// The image that a workload reads.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum SubjectKind {
    /// The requested one.
    Tree,
    /// One with a single wide directory.
    Wide,
}

/// The input of a run.
pub(super) struct Scene<'run> {
    /// The mount point.
    pub(super) mount: &'run Path,
    /// Its regular files.
    pub(super) files: &'run [ListedFile],
    /// The tree from which the image was made, if known.
    pub(super) tree: Option<&'run Path>,
    /// The number of the round, the seed of random choices: the same for all contenders.
    pub(super) round: u64,
    /// The duration of workloads without an end of their own.
    pub(super) duration: Duration,
}

/// A workload for contenders.
pub(super) trait Workload {
    /// Its name on the command line.
    fn name(&self) -> String;

    /// Its name in tables.
    fn title(&self) -> String;

    /// The image that it reads.
    fn subject(&self) -> SubjectKind {
        SubjectKind::Tree
    }

    /// Whether it runs by default.
    fn is_default(&self) -> bool {
        true
    }

    /// Runs it once, cold.
    fn run(&self, scene: &Scene<'_>) -> Outcome<Vec<Measurement>>;
}

/// All workloads, in the order of tables. `find_counts` are the numbers of parallel `find`s.
pub(super) fn all(find_counts: &[usize]) -> Vec<Box<dyn Workload>> {
    let mut workloads: Vec<Box<dyn Workload>> = vec![
        Box::new(whole_tree::WholeTree { threads: 2 }),
        Box::new(random_reads::RandomReads { threads: 1 }),
        Box::new(random_reads::RandomReads { threads: 8 }),
    ];
    for count in find_counts {
        workloads.push(Box::new(finds::ParallelFind { processes: *count }));
    }
    workloads.push(Box::new(stats::RandomStats));
    for (pattern, threads) in [(Pattern::Loader, 4), (Pattern::Random, 1), (Pattern::Random, 8), (Pattern::Walk, 2)] {
        workloads.push(Box::new(OpenedFiles { pattern, threads }));
    }
    workloads.push(Box::new(finds::FindSize));
    workloads.push(Box::new(stats::StatWide));
    workloads.push(Box::new(compare::Compare { threads: 8 }));
    workloads
}
