//! Captures a child's standard error without filling a pipe.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::process::Stdio;

use rustix::fs::MemfdFlags;

use crate::Result;
use crate::error::ErrorContext;

/// The maximum length read back.
const SAID_BYTES_MAX: u64 = 1 << 20;

/// A memory file for a child's messages.
#[derive(Debug)]
pub(crate) struct CapturedStderr(File);

impl CapturedStderr {
    pub(crate) fn new() -> Result<Self> {
        let file = rustix::fs::memfd_create("floe-lab-stderr", MemfdFlags::CLOEXEC);
        Ok(Self(File::from(file.context(|| "cannot make a file in memory".to_owned())?)))
    }

    /// The write end for the child.
    pub(crate) fn writer(&self) -> Result<Stdio> {
        let copy = self.0.try_clone().context(|| "cannot duplicate a file descriptor".to_owned())?;
        Ok(Stdio::from(OwnedFd::from(copy)))
    }

    /// The last nonempty line.
    pub(crate) fn last_line(&self) -> String {
        let mut bytes = Vec::new();
        let from_start = FromStart { file: &self.0, offset: 0 };
        let _ = from_start.take(SAID_BYTES_MAX).read_to_end(&mut bytes);
        let said = String::from_utf8_lossy(&bytes);
        said.lines().rev().map(str::trim).find(|line| !line.is_empty()).unwrap_or("no message").to_owned()
    }
}

/// Reads a file without moving the offset at which its writer writes.
struct FromStart<'file> {
    file: &'file File,
    offset: u64,
}

impl Read for FromStart<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        let length = self.file.read_at(bytes, self.offset)?;
        self.offset += length as u64;
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn the_last_nonempty_line_is_returned() {
        for (script, expected) in [("echo a >&2; echo b >&2; echo >&2", "b"), ("true", "no message")] {
            let said = CapturedStderr::new().unwrap();
            Command::new("sh").args(["-c", script]).stderr(said.writer().unwrap()).status().unwrap();
            assert_eq!(said.last_line(), expected);
        }
    }
}
