//! What contenders are asked to do.

mod compare;
mod parallel_find;
mod random_reads;
mod stat_wide;
mod whole_tree;

use std::{path::Path, time::Duration};

use super::listing::ListedFile;
use crate::complaint::Outcome;

/// Whether a larger value is better.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Better {
    /// It is.
    More,
    /// A smaller one is.
    Less,
}

/// One number of one run.
#[derive(Clone, Debug)]
pub(super) struct Measurement {
    /// What was measured, and in which unit: `p99 µs`.
    pub(super) metric: &'static str,
    /// The number.
    pub(super) value: f64,
    /// Which numbers are good.
    pub(super) better: Better,
}

impl Measurement {
    const fn more(metric: &'static str, value: f64) -> Self {
        Self { metric, value, better: Better::More }
    }

    pub(super) const fn less(metric: &'static str, value: f64) -> Self {
        Self { metric, value, better: Better::Less }
    }
}

/// Which image a workload reads.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum SubjectKind {
    /// The one that was asked for.
    Tree,
    /// One with a single wide directory.
    Wide,
}

/// What a run is given.
pub(super) struct Scene<'run> {
    /// Where the image is mounted.
    pub(super) mount: &'run Path,
    /// Its regular files.
    pub(super) files: &'run [ListedFile],
    /// The tree that the image was made of, where that is known.
    pub(super) tree: Option<&'run Path>,
    /// The number of the round, from which random choices come: the same for all contenders.
    pub(super) round: u64,
    /// How long workloads run that have no end of their own.
    pub(super) duration: Duration,
}

/// Something that contenders are asked to do.
pub(super) trait Workload {
    /// Its name on the command line.
    fn name(&self) -> String;

    /// Its name in tables.
    fn title(&self) -> String;

    /// Which image it reads.
    fn subject(&self) -> SubjectKind {
        SubjectKind::Tree
    }

    /// Whether it runs when none is named.
    fn is_default(&self) -> bool {
        true
    }

    /// Does it once, cold.
    fn run(&self, scene: &Scene<'_>) -> Outcome<Vec<Measurement>>;
}

/// All workloads, in the order of tables. `find_counts` says how many parallel `find`s there shall be.
pub(super) fn all(find_counts: &[usize]) -> Vec<Box<dyn Workload>> {
    let mut workloads: Vec<Box<dyn Workload>> = vec![
        Box::new(whole_tree::WholeTree { threads: 2 }),
        Box::new(random_reads::RandomReads { threads: 1 }),
        Box::new(random_reads::RandomReads { threads: 8 }),
    ];
    for count in find_counts {
        workloads.push(Box::new(parallel_find::ParallelFind { processes: *count }));
    }
    workloads.push(Box::new(stat_wide::StatWide));
    workloads.push(Box::new(compare::Compare { threads: 8 }));
    workloads
}
