//! The image of `floe demo` as a file that all readers can open.

use std::{
    fs,
    path::{Path, PathBuf},
};

use floe_image::ShownName;
use floe_lab::machine::{Change, PendingChange, PrivateDirectory, Undo};

use super::failed;
use crate::{command::demo, fail::Fail};

/// A file with the image. It is removed when the value is dropped, or when the process dies.
pub(super) struct DemoImage {
    path: PathBuf,
    _change: PendingChange,
    /// Removed after the file.
    _directory: PrivateDirectory,
}

impl DemoImage {
    /// Writes the file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn write() -> Result<Self, Fail> {
        let undo = Undo::new().map_err(failed)?;
        let directory = PrivateDirectory::create(&undo).map_err(failed)?;
        let path = directory.path().join("demo.erofs");
        let change = undo.record(Change::File { path: path.clone() }).map_err(failed)?;
        fs::write(&path, demo::IMAGE)
            .map_err(|error| Fail::failed(format!("cannot write {}: {error}", path.shown())))?;
        Ok(Self { path, _change: change, _directory: directory })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for DemoImage {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}
