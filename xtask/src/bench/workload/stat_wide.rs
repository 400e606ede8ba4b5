//! `stat` of every entry in a wide directory.

use std::{fs, time::Instant};

use super::{Measurement, Scene, SubjectKind, Workload};
use crate::{
    bench::subject::WIDE_ENTRIES,
    task_error::{Outcome, TaskError},
};

/// Lists a directory of [`WIDE_ENTRIES`] entries and reads the attributes of each, as `ls -l` does.
pub(super) struct StatWide;

impl Workload for StatWide {
    fn name(&self) -> String {
        "stat-wide".to_owned()
    }

    fn title(&self) -> String {
        format!("stat of {WIDE_ENTRIES} entries")
    }

    fn subject(&self) -> SubjectKind {
        SubjectKind::Wide
    }

    fn run(&self, scene: &Scene<'_>) -> Outcome<Vec<Measurement>> {
        let started = Instant::now();
        let mut count = 0;
        for entry in fs::read_dir(scene.mount.join("wide"))? {
            fs::symlink_metadata(entry?.path())?;
            count += 1;
        }
        let seconds = started.elapsed().as_secs_f64();
        if count != WIDE_ENTRIES {
            return Err(TaskError::new(format!("found {count} entries, expected {WIDE_ENTRIES}")));
        }
        Ok(vec![Measurement::less("s", seconds)])
    }
}
