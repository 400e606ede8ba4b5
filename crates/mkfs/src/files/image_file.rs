//! The image while it is written.

use std::{
    io,
    num::NonZeroU64,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use rustix::fs::{Advice, fadvise};

use super::{
    output_file::{OutputFile, output},
    temporaries::Temporaries,
};
use crate::{
    error::{Error, Result},
    memory::with_capacity,
};

/// The size in bytes of the write buffer, and the most that one system call writes: a signal ends the program only
/// between calls.
const BUFFER_LEN: usize = 1 << 20;
/// Zeros of this many bytes become a hole of the file.
const HOLE_LEN: usize = 64 << 10;
/// The disk begins to write the image once this many bytes wait, so that the sync at the end does not wait for all of them.
const WRITEBACK_LEN: u64 = 8 << 20;

/// An output file that is written sequentially, except for its head.
pub(crate) struct ImageFile {
    file: OutputFile,
    /// The offset of the image in the file. All other offsets and lengths are relative to it.
    start: u64,
    buffer: Vec<u8>,
    written: u64,
    /// The length of the part that the disk has begun to write.
    begun: u64,
}

impl ImageFile {
    /// Creates the file for `path`, with the image starting at byte `start`.
    pub(crate) fn create(path: &Path, start: u64, temporaries: &Temporaries) -> Result<Self> {
        let file = OutputFile::create(path, start, temporaries)?;
        Ok(Self { file, start, buffer: with_capacity(BUFFER_LEN)?, written: 0, begun: 0 })
    }

    /// The length so far, in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    /// Appends bytes.
    pub(crate) fn append(&mut self, mut bytes: &[u8]) -> Result<()> {
        while self.buffer.len() + bytes.len() >= BUFFER_LEN {
            if self.buffer.is_empty() {
                let (head, rest) = bytes.split_at(BUFFER_LEN);
                self.extend(head)?;
                bytes = rest;
                continue;
            }
            let (head, rest) = bytes.split_at(BUFFER_LEN - self.buffer.len());
            self.buffer.extend_from_slice(head);
            self.flush()?;
            bytes = rest;
        }
        self.buffer.extend_from_slice(bytes);
        Ok(())
    }

    /// Appends zeros up to a multiple of `alignment`.
    pub(crate) fn pad(&mut self, alignment: u64) -> Result<()> {
        let mut missing = self.len().next_multiple_of(alignment) - self.len();
        while missing > 0 {
            let len = missing.min(BUFFER_LEN as u64);
            self.append(&vec![0; usize::try_from(len).unwrap_or(0)])?;
            missing -= len;
        }
        Ok(())
    }

    /// Discards the bytes after `len`.
    pub(crate) fn rewind(&mut self, len: u64) -> Result<()> {
        if len >= self.written {
            self.buffer.truncate(usize::try_from(len - self.written).unwrap_or(usize::MAX));
        } else {
            self.buffer.clear();
            self.written = len;
            self.begun = self.begun.min(len);
            if !self.file.is_device() {
                self.file.file().set_len(self.start + len).map_err(self.failed("shorten"))?;
            }
        }
        Ok(())
    }

    /// Whether these bytes are stored at `offset`.
    pub(crate) fn holds(&mut self, offset: u64, bytes: &[u8]) -> Result<bool> {
        if offset + bytes.len() as u64 > self.written {
            self.flush()?;
        }
        let mut there = vec![0; bytes.len()];
        self.file.file().read_exact_at(&mut there, self.start + offset).map_err(self.failed("read back"))?;
        Ok(there == bytes)
    }

    /// Writes the superblock and the other data at the start over the zeros there. On a block device, all other data is
    /// synced first.
    pub(crate) fn put_head(&mut self, bytes: &[u8]) -> Result<()> {
        self.flush()?;
        if self.file.is_device() {
            self.file.file().sync_data().map_err(self.failed("write"))?;
        }
        self.write(bytes, 0)
    }

    /// Flushes the buffer and returns a path at which the file can be opened now.
    pub(crate) fn readable_path(&mut self) -> Result<PathBuf> {
        self.flush()?;
        Ok(self.file.readable_path())
    }

    /// Flushes the buffer and returns the complete file.
    pub(crate) fn into_file(mut self) -> Result<OutputFile> {
        self.flush()?;
        Ok(self.file)
    }

    fn flush(&mut self) -> Result<()> {
        let buffer = std::mem::take(&mut self.buffer);
        self.extend(&buffer)?;
        self.buffer = buffer;
        self.buffer.clear();
        Ok(())
    }

    /// Writes bytes after those written so far. A device may have had other bytes there, so it also gets zeros.
    fn extend(&mut self, bytes: &[u8]) -> Result<()> {
        let is_device = self.file.is_device();
        let is_hole = |part: &[u8]| !is_device && part.len() == HOLE_LEN && part.iter().all(|byte| *byte == 0);
        let mut rest = bytes;
        while let Some(first) = rest.chunks(HOLE_LEN).next() {
            let is_first_hole = is_hole(first);
            let parts = rest.chunks(HOLE_LEN).take_while(|part| is_hole(part) == is_first_hole);
            let (part, after) = rest.split_at(parts.map(<[u8]>::len).sum());
            let end = self.written + part.len() as u64;
            if is_first_hole {
                self.file.file().set_len(self.start + end).map_err(self.failed("write"))?;
            } else {
                self.write(part, self.written)?;
            }
            (self.written, rest) = (end, after);
        }
        self.begin_writeback();
        Ok(())
    }

    /// Linux writes dirty pages that a program will not need, and drops those that are clean. So these stay in memory.
    fn begin_writeback(&mut self) {
        let waiting = self.written.saturating_sub(self.begun);
        if let Some(len) = NonZeroU64::new(waiting).filter(|len| len.get() >= WRITEBACK_LEN) {
            let _ = fadvise(self.file.file(), self.start + self.begun, Some(len), Advice::DontNeed);
            self.begun = self.written;
        }
    }

    fn write(&mut self, bytes: &[u8], offset: u64) -> Result<()> {
        self.file.write_at(bytes, self.start + offset).map_err(self.failed("write"))
    }

    fn failed(&self, action: &'static str) -> impl FnOnce(io::Error) -> Error {
        output(self.file.path(), action)
    }
}
