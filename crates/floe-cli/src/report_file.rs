//! A file for the result of work that takes long.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

use crate::fail::Fail;
use floe_image::ShownName;

/// An output file that is opened before the work, so that an unwritable one fails at once. It is written in place: the
/// path may be a file in a directory without write permission, a mountpoint, a pipe or a terminal.
pub(crate) struct ReportFile {
    file: File,
    path: PathBuf,
    /// Whether this program created the file, and did not write to it yet.
    is_new: bool,
}

impl ReportFile {
    /// Opens the file. An existing one keeps its content until [`ReportFile::write`]; a new one is removed if there is
    /// nothing to write.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn open(path: &Path) -> Result<Self, Fail> {
        let (file, is_new) = opened(path).map_err(|error| not_written(path, &error))?;
        Ok(Self { file, path: path.to_path_buf(), is_new })
    }

    /// Replaces the content.
    ///
    /// # Errors
    /// The file cannot be written. It then has a part of the content.
    pub(crate) fn write(mut self, content: &[u8]) -> Result<(), Fail> {
        self.is_new = false;
        let is_file = self.file.metadata().is_ok_and(|status| status.is_file());
        let emptied = if is_file { self.file.set_len(0) } else { Ok(()) };
        emptied.and_then(|()| self.file.write_all(content)).map_err(|error| not_written(&self.path, &error))
    }
}

impl Drop for ReportFile {
    fn drop(&mut self) {
        if self.is_new {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Opens a file for writing. Returns whether it is new.
fn opened(path: &Path) -> io::Result<(File, bool)> {
    match File::options().write(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        opened => return Ok((opened?, false)),
    }
    let is_link = fs::symlink_metadata(path).is_ok_and(|status| status.is_symlink());
    // The target of a dangling link is kept: without it, the link would dangle again.
    File::options().write(true).create(true).truncate(false).open(path).map(|file| (file, !is_link))
}

fn not_written(path: &Path, error: &io::Error) -> Fail {
    Fail::failed(format!("cannot write {}: {error}", path.shown()))
}
