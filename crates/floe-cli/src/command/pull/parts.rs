//! The unfinished files of a download, which a signal removes.

use std::{
    fs, io, mem,
    path::{Path, PathBuf},
    sync::Arc,
};

use floe_sync::Mutex;
use tempfile::NamedTempFile;

/// The unfinished files of a download. Each is removed when it is dropped, and all are removed before the process ends by a
/// signal, which drops nothing.
#[derive(Clone, Default)]
pub(super) struct Parts {
    paths: Arc<Mutex<Vec<PathBuf>>>,
}

impl Parts {
    /// Creates an empty file in a directory.
    ///
    /// # Errors
    /// The file cannot be created.
    pub(super) fn create_in(&self, directory: &Path) -> io::Result<NamedTempFile> {
        // Held until the file is noted, so that no signal leaves it behind.
        let mut paths = self.paths.lock();
        let part = NamedTempFile::new_in(directory)?;
        paths.push(part.path().to_owned());
        Ok(part)
    }

    /// Removes all files. No others can be created from now on: a thread that tries to waits for the end of the process.
    pub(super) fn remove_all(&self) {
        let mut paths = self.paths.lock();
        for path in paths.drain(..) {
            // A finished file has another name.
            let _ = fs::remove_file(path);
        }
        mem::forget(paths);
    }
}
