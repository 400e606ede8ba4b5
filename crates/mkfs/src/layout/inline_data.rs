//! The data that will follow inodes: ends of files, short link targets. It is kept in a temporary file, because a million small
//! files consist of nothing else.

use std::{borrow::Cow, cell::RefCell, fs::File, os::unix::fs::FileExt, path::PathBuf};

use crate::{
    error::{Error, Result},
    files::output_file::scratch_file,
};

/// How many bytes stay in memory before they are written.
const BUFFER_LEN: usize = 4 << 20;
/// How many bytes are read at a time, and how many of them precede the wanted ones. Inodes are written nearly in their order.
const WINDOW_LEN: u64 = 1 << 20;
const WINDOW_BEFORE_LEN: u64 = 256 << 10;

/// The number of bits of a length. Inline data is shorter than a block.
const LEN_BITS: u32 = 16;

/// Where the inline data of an inode is kept: its offset, and in the lowest 16 bits its length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct InlineData(u64);

impl InlineData {
    /// No data.
    pub(crate) const NONE: Self = Self(0);

    fn new(offset: u64, len: usize) -> Option<Self> {
        let len = u16::try_from(len).ok()?;
        (offset >> (u64::BITS - LEN_BITS) == 0).then_some(Self(offset << LEN_BITS | u64::from(len)))
    }

    fn offset(self) -> u64 {
        self.0 >> LEN_BITS
    }

    /// The inline data of [`InlineData::to_bits`].
    pub(crate) fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The place and the length as one number.
    pub(crate) fn to_bits(self) -> u64 {
        self.0
    }

    /// Its length in bytes.
    pub(crate) fn len(self) -> u64 {
        self.0 & u64::from(u16::MAX)
    }

    pub(crate) fn is_empty(self) -> bool {
        self.len() == 0
    }
}

/// The inline data of all inodes.
pub(crate) struct InlineStore {
    /// The path of the image, beside which the temporary file is.
    output: PathBuf,
    file: Option<File>,
    /// The bytes in the file.
    written: u64,
    /// The bytes after them.
    buffer: Vec<u8>,
    window: RefCell<Window>,
}

/// A part of the file.
#[derive(Default)]
struct Window {
    start: u64,
    bytes: Vec<u8>,
}

impl InlineStore {
    pub(crate) fn new(output: PathBuf) -> Self {
        Self { output, file: None, written: 0, buffer: Vec::new(), window: RefCell::default() }
    }

    /// Keeps the data of an inode.
    pub(crate) fn put(&mut self, bytes: &[u8]) -> Result<InlineData> {
        if bytes.is_empty() {
            return Ok(InlineData::NONE);
        }
        if self.buffer.len() + bytes.len() > BUFFER_LEN {
            self.flush()?;
        }
        let offset = self.written + self.buffer.len() as u64;
        self.buffer.extend_from_slice(bytes);
        InlineData::new(offset, bytes.len()).ok_or_else(|| Error::Layout("there is too much inline data".into()))
    }

    fn flush(&mut self) -> Result<()> {
        let file = match &self.file {
            Some(file) => file,
            None => self.file.insert(scratch_file(&self.output)?),
        };
        let failed =
            |error| Error::Output { path: self.output.clone(), action: "write a temporary file next to", error };
        file.write_all_at(&self.buffer, self.written).map_err(failed)?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// The data of an inode.
    pub(crate) fn get(&self, data: InlineData) -> Result<Cow<'_, [u8]>> {
        let len = usize::try_from(data.len()).unwrap_or(usize::MAX);
        let part = |bytes: &[u8], start: u64| {
            let at = usize::try_from(data.offset().checked_sub(start)?).ok()?;
            bytes.get(at..at.checked_add(len)?).map(<[u8]>::to_vec)
        };
        if data.is_empty() {
            return Ok(Cow::Borrowed(&[]));
        }
        if let Some(bytes) = part(&self.buffer, self.written) {
            return Ok(Cow::Owned(bytes));
        }
        let mut window = self.window.borrow_mut();
        if part(&window.bytes, window.start).is_none() {
            self.read(data, &mut window)?;
        }
        Ok(Cow::Owned(part(&window.bytes, window.start).unwrap_or_default()))
    }

    /// Moves the window to the data.
    fn read(&self, data: InlineData, window: &mut Window) -> Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        window.start = data.offset().saturating_sub(WINDOW_BEFORE_LEN);
        let end = (window.start + WINDOW_LEN).max(data.offset() + data.len()).min(self.written);
        window.bytes.resize(usize::try_from(end.saturating_sub(window.start)).unwrap_or(usize::MAX), 0);
        let failed =
            |error| Error::Output { path: self.output.clone(), action: "read a temporary file next to", error };
        file.read_exact_at(&mut window.bytes, window.start).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_kept_in_any_order() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut store = InlineStore::new(folder.path().join("image"));
        let bytes = |number: usize| vec![(number % 251) as u8; number * 37 % 4000];
        let kept: Vec<InlineData> = (0..6000).map(|number| store.put(&bytes(number)).expect("kept")).collect();
        assert!(store.written > 0 && !store.buffer.is_empty());
        for step in [1, 7, 5999] {
            for number in (0..6000).map(|number| number * step % 6000) {
                assert_eq!(*store.get(kept[number]).expect("read"), bytes(number), "{number}");
            }
        }
    }
}
