//! A temporary directory that is removed even if the run is killed.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use super::undo::{Change, PendingChange, Undo};
use crate::Result;
use crate::error::ErrorContext;
use floe_image::ShownName;

/// How many names are tried. Names are random, so even the second is rarely needed.
const NAME_ATTEMPTS_MAX: u32 = 16;

/// A new directory in the system's temporary directory. Only this user can enter it, so files in it may have any names.
#[derive(Debug)]
pub struct PrivateDirectory {
    path: PathBuf,
    _change: PendingChange,
}

impl PrivateDirectory {
    /// Creates the directory. Never uses one that exists, nor a link that another user has put in its place.
    ///
    /// # Errors
    /// The directory or the journal cannot be written.
    pub fn create(undo: &Undo) -> Result<Self> {
        let mut attempts_left = NAME_ATTEMPTS_MAX;
        loop {
            let name = format!("floe-lab-{}-{:08x}", std::process::id(), fastrand::u32(..));
            let path = std::env::temp_dir().join(name);
            attempts_left -= 1;
            // The journal must not name what belongs to others for longer than this.
            let change = undo.record(Change::Directory { path: path.clone() })?;
            match fs::DirBuilder::new().mode(0o700).create(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && attempts_left > 0 => {}
                created => {
                    created.context(|| format!("cannot make {}", path.shown()))?;
                    return Ok(Self { path, _change: change });
                }
            }
        }
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for PrivateDirectory {
    /// Removes the directory if it is empty.
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.path);
    }
}
