//! Writes to standard output.

use std::{
    fmt,
    fs::File,
    io::{self, BufWriter, Write},
};

use floe_image::harmless;
use floe_source::standard_output_was_closed;

use crate::{exit::Exit, fail::Fail};

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
