//! Runs of `find`.

use std::{
    process::{Child, Command, Stdio},
    time::Instant,
};

use super::{Measurement, Scene, Workload};
use crate::task_error::{During, Outcome, TaskError};

/// Processes of `find` that walk the same tree at the same time.
pub(super) struct ParallelFind {
    /// The number of processes.
    pub(super) processes: usize,
}

impl Workload for ParallelFind {
    fn name(&self) -> String {
        format!("find-{}", self.processes)
    }

    fn title(&self) -> String {
        format!("{} parallel finds", self.processes)
    }

    fn run(&self, scene: &Scene<'_>) -> Outcome<Vec<Measurement>> {
        let started = Instant::now();
        let mut finds = Vec::new();
        for _ in 0..self.processes {
            finds.push(find(scene, &[])?);
        }
        seconds_until_ended(started, finds)
    }
}

/// A `find` by size, which reads the attributes of every file.
pub(super) struct FindSize;

impl Workload for FindSize {
    fn name(&self) -> String {
        "find-size".to_owned()
    }

    fn title(&self) -> String {
        "find -size".to_owned()
    }

    fn is_default(&self) -> bool {
        false
    }

    fn run(&self, scene: &Scene<'_>) -> Outcome<Vec<Measurement>> {
        let started = Instant::now();
        seconds_until_ended(started, vec![find(scene, &["-size", "+100000k"])?])
    }
}

fn find(scene: &Scene<'_>, tests: &[&str]) -> Outcome<Child> {
    Command::new("find").arg(scene.mount).args(tests).stdout(Stdio::null()).spawn().during("find")
}

fn seconds_until_ended(started: Instant, finds: Vec<Child>) -> Outcome<Vec<Measurement>> {
    let mut failed = false;
    for mut find in finds {
        let status = find.wait()?;
        // `find` reports directories that an ordinary user may not read.
        let is_report = status.code() == Some(1) && !rustix::process::geteuid().is_root();
        failed |= !(status.success() || is_report);
    }
    let seconds = started.elapsed().as_secs_f64();
    if failed {
        return Err(TaskError::new("find failed"));
    }
    Ok(vec![Measurement::less("s", seconds)])
}
