//! What a mount has done, written down when it ends.

use std::{fs::File, io::Write, path::PathBuf};

use crate::{fail::Fail, status};

/// A file for the account, made before there is anything to tell: whoever removes it meanwhile finds nothing later.
pub(crate) struct AccountFile {
    file: File,
    path: PathBuf,
}

impl AccountFile {
    /// Makes the file.
    ///
    /// # Errors
    /// It cannot be made.
    pub(crate) fn create(path: PathBuf) -> Result<Self, Fail> {
        match File::create(&path) {
            Ok(file) => Ok(Self { file, path }),
            Err(error) => Err(Fail::failed(format!("cannot write {}: {error}", path.display()))),
        }
    }

    /// Writes what `floe status --json` would say now.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn write(mut self, source: &status::Source) -> Result<(), Fail> {
        let written = serde_json::to_vec(&source.report()).map_err(Into::into);
        let written = written.and_then(|report| self.file.write_all(&report));
        written.map_err(|error| Fail::failed(format!("cannot write {}: {error}", self.path.display())))
    }
}
