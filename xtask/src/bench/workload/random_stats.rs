//! `stat` of files in no order.

use std::{fs, time::Instant};

use floe_testkit::Random;

use super::{Measurement, Scene, Workload};
use crate::{bench::listing, task_error::Outcome};

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
