//! Writes to standard output, and to files for the results of long work.

use std::{
    fmt,
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

use floe_image::{ShownName, harmless};
use floe_source::standard_output_was_closed;

use crate::fail::{Exit, Fail};

/// Standard output with a large buffer, which is not flushed at line ends.
pub(crate) struct Output {
    writer: BufWriter<File>,
}

/// The size of the buffer.
const BUFFER_BYTES: usize = 64 << 10;

impl Output {
    /// Opens standard output.
    pub(crate) fn open() -> Result<Self, Fail> {
        if standard_output_was_closed() {
            return Err(Fail::failed("standard output is closed"));
        }
        let stdout = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3);
        let stdout = stdout.map_err(|error| Fail::failed(format!("standard output: {}", io::Error::from(error))))?;
        Ok(Self { writer: BufWriter::with_capacity(BUFFER_BYTES, File::from(stdout)) })
    }

    /// Runs `write`, flushes, and returns its exit code. A closed pipe, as with `head`, ends the program silently.
    pub(crate) fn run(write: impl FnOnce(&mut (dyn Write + Send)) -> io::Result<u8>) -> Result<u8, Fail> {
        let mut output = Self::open()?;
        let result = write(&mut output.writer).and_then(|exit| output.writer.flush().map(|()| exit));
        // After an error, the rest of the buffer must not be written.
        let (_, _) = output.writer.into_parts();
        match result {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Exit::Done.code()),
            Err(error) => Err(Fail::failed(format!("standard output: {error}"))),
            Ok(exit) => Ok(exit),
        }
    }

    /// Writes a text.
    pub(crate) fn print(text: impl fmt::Display) -> Result<u8, Fail> {
        Self::run(|writer| write!(writer, "{text}").map(|()| Exit::Done.code()))
    }
}

/// Prints an informative text and ignores errors: the work is done even if the text cannot be printed.
pub(crate) fn remark(text: impl fmt::Display) {
    let mut stdout = io::stdout().lock();
    let _ = write!(stdout, "{}", harmless(&text.to_string())).and_then(|()| stdout.flush());
}

/// Prints a text over the current line of a terminal, like [`remark`].
pub(crate) fn redraw(text: impl fmt::Display) {
    let mut stdout = io::stdout().lock();
    let _ = write!(stdout, "\r{}", harmless(&text.to_string())).and_then(|()| stdout.flush());
}

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
