//! The metabox's content as a source, for compressed data inside the metabox.

use std::{io, sync::Weak};

use floe_image::{BlockReader, Error, ImageSource};

use super::{
    content,
    volume::{Parts, Volume},
};

/// The maximum number of bytes that one read of the metabox returns.
const PART_LEN_MAX: usize = 1 << 20;

/// The metabox's content as a source.
///
/// The volume's reader owns this source, so the source refers to the volume and the reader only weakly.
pub(super) struct MetaboxSource {
    parts: Weak<Parts>,
    reader: Weak<dyn BlockReader>,
    len: u64,
}

impl MetaboxSource {
    /// The content of the metabox, `len` bytes, of the volume of `parts`, read through `reader`.
    pub(super) fn new(parts: Weak<Parts>, reader: Weak<dyn BlockReader>, len: u64) -> Self {
        Self { parts, reader, len }
    }
}

impl ImageSource for MetaboxSource {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, output: &mut [u8]) -> io::Result<()> {
        let closed = || io::Error::other("the image is closed");
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

    fn try_read_at(&self, _offset: u64, _output: &mut [u8]) -> io::Result<bool> {
        // The bytes have to be decoded first.
        Ok(false)
    }
}

fn io_error(error: Error) -> io::Error {
    match &error {
        Error::Io { error: cause, .. } => io::Error::new(cause.kind(), error),
        _ => io::Error::new(io::ErrorKind::InvalidData, error),
    }
}
