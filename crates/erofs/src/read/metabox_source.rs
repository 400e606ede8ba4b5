//! The metabox's content as a source of its own, for compressed data that stands in it.

use std::{io, sync::Weak};

use floe_image::{Error, ImageSource};

use super::{content, volume::Volume};

/// The most bytes that are read from the metabox at once.
const PART_LEN_MAX: usize = 1 << 20;

/// The metabox's content as a source of its own.
///
/// The reader that the volume reads with holds this source, so it must not hold the volume in turn.
pub(super) struct MetaboxSource {
    volume: Weak<Volume>,
    len: u64,
}

impl MetaboxSource {
    /// The content, `len` bytes, of the metabox of `volume`.
    pub(super) fn new(volume: Weak<Volume>, len: u64) -> Self {
        Self { volume, len }
    }
}

impl ImageSource for MetaboxSource {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, output: &mut [u8]) -> io::Result<()> {
        let closed = || io::Error::other("the image was closed");
        let volume = self.volume.upgrade().ok_or_else(closed)?;
        let metabox = &volume.metabox.as_ref().ok_or_else(closed)?.inode;
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
