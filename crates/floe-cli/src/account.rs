//! Writes the statistics of a mount to a file when the mount ends.

use std::{fs::File, io::Write, path::PathBuf};

use crate::{fail::Fail, status};
use floe_image::ShownName;

/// A file for the statistics of a mount. It is created when the mount starts; if a user removes it meanwhile, it is not
/// created again.
pub(crate) struct AccountFile {
    file: File,
    path: PathBuf,
}

impl AccountFile {
    /// Creates the file.
    ///
    /// # Errors
    /// The file cannot be created.
    pub(crate) fn create(path: PathBuf) -> Result<Self, Fail> {
        match File::create(&path) {
            Ok(file) => Ok(Self { file, path }),
            Err(error) => Err(Fail::failed(format!("cannot write {}: {error}", path.shown()))),
        }
    }

    /// Writes the same report as `floe status --json`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn write(mut self, source: &status::Source) -> Result<(), Fail> {
        let written = serde_json::to_vec(&source.report()).map_err(Into::into);
        let written = written.and_then(|report| self.file.write_all(&report));
        written.map_err(|error| Fail::failed(format!("cannot write {}: {error}", self.path.shown())))
    }
}
