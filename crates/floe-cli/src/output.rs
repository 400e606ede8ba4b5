//! Standard output.

use std::{
    fmt,
    fs::File,
    io::{self, BufWriter, Write},
};

use floe_source::standard_output_was_closed;

use crate::{exit::Exit, fail::Fail};

/// Standard output, with a large buffer and no regard to lines.
pub(crate) struct Output {
    writer: BufWriter<File>,
}

/// The size of the buffer.
const BUFFER_BYTES: usize = 64 << 10;

impl Output {
    /// Opens it.
    pub(crate) fn open() -> Result<Self, Fail> {
        if standard_output_was_closed() {
            return Err(Fail::failed("standard output is closed"));
        }
        let stdout = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3);
        let stdout = stdout.map_err(|error| Fail::failed(format!("standard output: {}", io::Error::from(error))))?;
        Ok(Self { writer: BufWriter::with_capacity(BUFFER_BYTES, File::from(stdout)) })
    }

    /// Runs `write` and ends with `exit` once all is written. A reader that goes away, as `head` does, is a silent end.
    pub(crate) fn run(write: impl FnOnce(&mut (dyn Write + Send)) -> io::Result<u8>) -> Result<u8, Fail> {
        let mut output = Self::open()?;
        let result = write(&mut output.writer).and_then(|exit| output.writer.flush().map(|()| exit));
        // What is left in the buffer after an error is not to be written at last.
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

/// Writes a text that is only about what was done, which is done also where nobody can be told.
pub(crate) fn remark(text: impl fmt::Display) {
    let mut stdout = io::stdout().lock();
    let _ = write!(stdout, "{text}").and_then(|()| stdout.flush());
}
