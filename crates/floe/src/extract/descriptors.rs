//! Divides the file descriptors that the process may still open among the threads of an extraction.

use std::fs;

use rustix::process::{Resource, getrlimit};

/// Descriptors that a thread needs besides those of its open directories: a file, a handle on a special file, the
/// source of a hard link, and a step on the path to a directory.
const BESIDE_DIRECTORIES: usize = 4;

/// The minimum number of directories that a thread keeps open.
const DIRECTORIES_MIN: usize = 2;
const DIRECTORIES_MAX: usize = 64;

/// Descriptors left for the rest of the process.
const SPARE: usize = 8;

/// The assumed number of open descriptors if `/proc` is not available.
const OPEN_UNKNOWN: usize = 16;

/// The share of file descriptors of each thread of an extraction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Descriptors {
    /// The number of threads with enough descriptors; at least 1, at most the number of jobs.
    pub(super) threads: usize,
    /// The number of directories that each thread, and the planner, may keep open.
    pub(super) directories_max: usize,
}

impl Descriptors {
    /// Divides what `RLIMIT_NOFILE` leaves among `jobs` threads, or among fewer if it is too little.
    pub(super) fn for_jobs(jobs: usize) -> Self {
        let limit = getrlimit(Resource::Nofile).current.map_or(usize::MAX, |limit| limit as usize);
        let open = fs::read_dir("/proc/self/fd").map_or(OPEN_UNKNOWN, Iterator::count);
        Self::within(limit, open, jobs)
    }

    fn within(limit: usize, open: usize, jobs: usize) -> Self {
        let free = limit.saturating_sub(open).saturating_sub(SPARE);
        let threads = (free / (BESIDE_DIRECTORIES + DIRECTORIES_MIN)).saturating_sub(1).clamp(1, jobs.max(1));
        // The planner gets a share too.
        let share = free / (threads + 1);
        let directories_max = share.saturating_sub(BESIDE_DIRECTORIES).clamp(DIRECTORIES_MIN, DIRECTORIES_MAX);
        Self { threads, directories_max }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_shares_together_are_within_the_limit() {
        for (limit, open, jobs, threads, directories_max) in [
            (usize::MAX, 10, 32, 32, 64),
            (1024, 10, 32, 32, 26),
            (1024, 10, 1000, 166, 2),
            (64, 10, 4, 4, 5),
            (64, 10, 32, 6, 2),
            (20, 10, 32, 1, 2),
            (8, 10, 0, 1, 2),
        ] {
            let found = Descriptors::within(limit, open, jobs);
            assert_eq!(found, Descriptors { threads, directories_max }, "{limit} {open} {jobs}");
            let needed = (threads + 1) * (directories_max + BESIDE_DIRECTORIES) + open;
            assert!(threads == 1 || needed <= limit, "{limit} {open} {jobs}: {needed}");
        }
    }
}
