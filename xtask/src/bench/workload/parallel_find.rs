//! Parallel `find`s.

use std::{
    process::{Command, Stdio},
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
            let mut command = Command::new("find");
            finds.push(command.arg(scene.mount).stdout(Stdio::null()).spawn().during("find")?);
        }
        let mut failed = false;
        for mut find in finds {
            failed |= !find.wait()?.success();
        }
        let seconds = started.elapsed().as_secs_f64();
        if failed {
            return Err(TaskError::new("find failed"));
        }
        Ok(vec![Measurement::less("s", seconds)])
    }
}
