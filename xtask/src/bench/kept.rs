//! Waits for kept metadata of fronts.

use std::{
    fs::{self, DirEntry},
    io,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use crate::task_error::{Outcome, TaskError};

/// How long a mount may take to keep the metadata of a front. A mount that is idle looks every 30 seconds.
const PATIENCE: Duration = Duration::from_secs(45);

/// Waits until the metadata of all fronts with this cache directory are kept, or are not going to be.
pub(super) fn wait(cache: &Path) {
    let started = Instant::now();
    let is_kept = |front: io::Result<DirEntry>| front.is_ok_and(|front| front.path().join("metadata").exists());
    while let Ok(mut fronts) = fs::read_dir(cache.join("fronts"))
        && !fronts.all(is_kept)
        && started.elapsed() < PATIENCE
    {
        thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until the metadata of `count` fronts with this cache directory are kept.
///
/// # Errors
/// They are not after a while.
pub(super) fn wait_for(cache: &Path, count: usize) -> Outcome {
    let started = Instant::now();
    loop {
        let fronts = fs::read_dir(cache.join("fronts")).into_iter().flatten().flatten();
        let kept = fronts.filter(|front| front.path().join("metadata").exists()).count();
        if kept >= count {
            return Ok(());
        }
        if started.elapsed() > PATIENCE {
            return Err(TaskError::new(format!("the metadata of {kept} of {count} fronts are kept")));
        }
        thread::sleep(Duration::from_millis(20));
    }
}
