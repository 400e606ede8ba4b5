//! Opening an image.

use std::{
    io,
    sync::{Arc, OnceLock, Weak},
};

use floe_image::{BlockReader, Error, FileType, ImageSource, Place, Result};

use super::{
    content,
    inode::Inode,
    parameters::Parameters,
    superblock::Superblock,
    volume::{Parts, Special, Volume},
};

impl Volume {
    /// Opens the image in `reader` with the given superblock.
    ///
    /// # Errors
    /// The image breaks the format or uses unsupported features, in structures that every access needs.
    pub(super) fn open(reader: Arc<dyn BlockReader>, superblock: Superblock) -> Result<Self> {
        let parameters = Parameters::read(reader.as_ref(), superblock)?;
        let parts = Parts { parameters, metabox: OnceLock::new(), packed: OnceLock::new() };
        let volume = Self::of(Arc::new(parts), reader);
        if let Some(nid) = volume.superblock.metabox {
            let inode = Inode::read(&volume, nid)?;
            let _ = volume.metabox_len.set(inode.size);
            let _ = volume.metabox.set(Special::new(inode));
        }
        if let Some(nid) = volume.superblock.packed {
            let _ = volume.packed.set(Special::new(Inode::read(&volume, nid)?));
        }
        let root = Inode::read(&volume, volume.superblock.root)?;
        if root.file_type != FileType::Directory {
            return Err(Error::corrupt("root is not a directory", Place::inode(root.nid)));
        }
        if let Some(metabox) = volume.metabox.get() {
            let (parts, reader) = (Arc::downgrade(&volume.parts), Arc::downgrade(&volume.reader));
            let source = MetaboxSource { parts, reader, len: metabox.inode.size };
            if let Ok(device) = volume.reader.add_derived(Arc::new(source)) {
                let _ = volume.metabox_device.set(device);
            }
        }
        Ok(volume)
    }
}

/// The maximum number of bytes that one read of the metabox returns.
const PART_LEN_MAX: usize = 1 << 20;

/// The metabox's content as a source, for compressed data inside the metabox.
///
/// The volume's reader owns this source, so the source refers to the volume and the reader only weakly.
struct MetaboxSource {
    parts: Weak<Parts>,
    reader: Weak<dyn BlockReader>,
    len: u64,
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
