//! The metabox's content as a source of its own, for compressed data that stands in it.

use std::{io, sync::Weak};

use floe_image::{BlockReader, Error, ImageSource};

use super::{
    content,
    volume::{Parts, Volume},
};

/// The most bytes that are read from the metabox at once.
const PART_LEN_MAX: usize = 1 << 20;

/// The metabox's content as a source of its own.
///
/// The reader that the volume reads with holds this source, so it must hold neither of them in turn.
pub(super) struct MetaboxSource {
    parts: Weak<Parts>,
    reader: Weak<dyn BlockReader>,
    len: u64,
}

impl MetaboxSource {
    /// The content, `len` bytes, of the metabox of the volume of `parts`, read by `reader`.
    pub(super) fn new(parts: Weak<Parts>, reader: Weak<dyn BlockReader>, len: u64) -> Self {
        Self { parts, reader, len }
    }
}

impl ImageSource for MetaboxSource {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, output: &mut [u8]) -> io::Result<()> {
        let closed = || io::Error::other("the image was closed");
        let parts = self.parts.upgrade().ok_or_else(closed)?;
        let volume = Volume::of(parts, self.reader.upgrade().ok_or_else(closed)?);
        let metabox = &volume.metabox.get().ok_or_else(closed)?.inode;
        let end = u64::try_from(output.len()).ok().and_then(|len| offset.checked_add(len));
        if end.is_none_or(|end| end > self.len) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut position = offset;
        for part in output.chunks_mut(PART_LEN_MAX) {
            let bytes = content::read(&volume, metabox, position, part.len()).map_err(io_error)?;
            part.copy_from_slice(&bytes);
            position = position.saturating_add(u64::try_from(part.len()).unwrap_or(u64::MAX));
        }
        Ok(())
    }

    fn read_at_hand(&self, _offset: u64, _output: &mut [u8]) -> io::Result<bool> {
        // It takes a decode, and perhaps a read.
        Ok(false)
    }
}

fn io_error(error: Error) -> io::Error {
    match &error {
        Error::Io { error: cause, .. } => io::Error::new(cause.kind(), error),
        _ => io::Error::new(io::ErrorKind::InvalidData, error),
    }
}
