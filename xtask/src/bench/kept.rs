//! Waits for kept metadata of fronts.

use std::{
    fs::{self, DirEntry},
    io,
    path::Path,
    thread,
    time::{Duration, Instant},
};

/// How long a mount may take to keep the metadata of a front.
const PATIENCE: Duration = Duration::from_secs(30);

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
