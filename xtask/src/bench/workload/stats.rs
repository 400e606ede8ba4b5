//! `stat` of files in no order, and of every entry in a wide directory.

use std::{fs, time::Instant};

use floe_testkit::Random;

use super::{Measurement, Scene, SubjectKind, Workload};
use crate::{
    bench::{listing, subject::WIDE_ENTRIES},
    task_error::{Outcome, TaskError},
};

/// The maximum number of files.
const FILES_MAX: usize = 15_000;

/// Reads the attributes of files by path, in random order, none twice.
pub(super) struct RandomStats;

impl Workload for RandomStats {
    fn name(&self) -> String {
        "stat".to_owned()
    }

    fn title(&self) -> String {
        "stat of random files".to_owned()
    }

    fn is_default(&self) -> bool {
        false
    }

    fn run(&self, scene: &Scene<'_>) -> Outcome<Vec<Measurement>> {
        let mut paths: Vec<_> = scene.files.iter().map(|file| scene.mount.join(&file.path)).collect();
        listing::shuffle(&mut paths, &mut Random::new(scene.round));
        paths.truncate(FILES_MAX);
        let started = Instant::now();
        for path in &paths {
            fs::symlink_metadata(path)?;
        }
        Ok(vec![Measurement::more("files/s", paths.len() as f64 / started.elapsed().as_secs_f64())])
    }
}

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
