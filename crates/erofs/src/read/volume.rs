//! An open image: the state that all reads share.

use std::{
    ops::Deref,
    sync::{Arc, OnceLock},
};

use floe_image::{BlockReader, Bytes, DeviceId, Error, FileType, Nid, Place, Result};

use super::{
    algorithms::Algorithms, compressed::CompressedLayout, content, device_table::Devices, inode::Inode,
    length_sums::LengthSums, metabox_source::MetaboxSource, superblock::Superblock,
};

/// The address spaces of metadata.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Space {
    /// In the image itself.
    Image,
    /// The content of the metabox inode.
    Metabox,
}

/// An open image with the reader of its metadata.
pub(super) struct Volume {
    pub(super) reader: Arc<dyn BlockReader>,
    parts: Arc<Parts>,
}

/// The state of an open image that does not depend on the reader.
pub(super) struct Parts {
    pub(super) superblock: Superblock,
    pub(super) devices: Devices,
    pub(super) algorithms: Algorithms,
    /// The length of the image itself, in bytes.
    pub(super) image_len: u64,
    /// The inode that contains compressed metadata.
    pub(super) metabox: OnceLock<Special>,
    /// The inode that contains fragments.
    pub(super) packed: OnceLock<Special>,
    /// The known sums of stored lengths.
    pub(super) length_sums: LengthSums,
    /// The device number of the metabox's content, if the reader supports derived sources.
    metabox_device: OnceLock<DeviceId>,
}

/// An inode that holds data or metadata of other inodes. Almost every access needs it, so it stays in memory.
#[derive(Debug)]
pub(super) struct Special {
    pub(super) inode: Inode,
    layout: OnceLock<CompressedLayout>,
}

impl Special {
    /// Keeps an inode.
    pub(super) fn new(inode: Inode) -> Self {
        Self { inode, layout: OnceLock::new() }
    }

    /// The layout of its compressed data.
    ///
    /// # Errors
    /// As for [`CompressedLayout::read`].
    pub(super) fn layout(&self, volume: &Volume, is_compact: bool) -> Result<CompressedLayout> {
        match self.layout.get() {
            Some(layout) => Ok(*layout),
            None => {
                let layout = CompressedLayout::read(volume, &self.inode, is_compact)?;
                Ok(*self.layout.get_or_init(|| layout))
            }
        }
    }
}

impl Deref for Volume {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.parts
    }
}

impl Volume {
    /// Opens the image in `reader` with the given superblock.
    ///
    /// # Errors
    /// The image breaks the format or uses unsupported features, in structures that every access needs.
    pub(super) fn open(reader: Arc<dyn BlockReader>, superblock: Superblock) -> Result<Self> {
        let parts = Parts {
            devices: Devices::read(reader.as_ref(), &superblock)?,
            algorithms: Algorithms::read(reader.as_ref(), &superblock)?,
            image_len: reader.device_len(DeviceId(0))?,
            metabox: OnceLock::new(),
            packed: OnceLock::new(),
            metabox_device: OnceLock::new(),
            length_sums: LengthSums::default(),
            superblock,
        };
        let volume = Self { reader, parts: Arc::new(parts) };
        // The packed inode may be inside the metabox.
        for (nid, special) in [(volume.superblock.metabox, &volume.metabox), (volume.superblock.packed, &volume.packed)]
        {
            if let Some(nid) = nid {
                let _ = special.set(Special::new(Inode::read(&volume, nid)?));
            }
        }
        let root = Inode::read(&volume, volume.superblock.root)?;
        if root.file_type != FileType::Directory {
            return Err(Error::corrupt("root is not a directory", Place::inode(root.nid)));
        }
        if let Some(metabox) = volume.metabox.get() {
            let (parts, reader) = (Arc::downgrade(&volume.parts), Arc::downgrade(&volume.reader));
            let source = MetaboxSource::new(parts, reader, metabox.inode.size);
            if let Ok(device) = volume.reader.add_derived(Arc::new(source)) {
                let _ = volume.metabox_device.set(device);
            }
        }
        Ok(volume)
    }

    /// The same image, read by another reader.
    pub(super) fn with_reader(&self, reader: Arc<dyn BlockReader>) -> Self {
        Self::of(Arc::clone(&self.parts), reader)
    }

    /// Combines the state with a reader.
    pub(super) fn of(parts: Arc<Parts>, reader: Arc<dyn BlockReader>) -> Self {
        Self { reader, parts }
    }

    /// The device number under which the metabox's content is read.
    ///
    /// # Errors
    /// The reader does not support derived sources.
    pub(super) fn metabox_device(&self) -> Result<DeviceId> {
        self.metabox_device.get().copied().ok_or(Error::unsupported("compressed data inside compressed metadata"))
    }

    /// The special inode `nid`, if it is one.
    pub(super) fn special(&self, nid: Nid) -> Option<&Special> {
        [&self.metabox, &self.packed].into_iter().filter_map(OnceLock::get).find(|special| special.inode.nid == nid)
    }

    /// The number of metadata bytes in `space`.
    pub(super) fn space_len(&self, space: Space) -> u64 {
        match (space, self.metabox.get()) {
            (Space::Image, _) => self.image_len,
            (Space::Metabox, Some(metabox)) => metabox.inode.size,
            (Space::Metabox, None) => 0,
        }
    }

    /// `len` bytes of metadata from `position` on, read on behalf of inode `nid`. `len` is at most
    /// [`BlockReader::STORED_LEN_MAX`](floe_image::BlockReader).
    ///
    /// # Errors
    /// The bytes are past the end or cannot be read, or the metabox breaks the format.
    pub(super) fn metadata(&self, space: Space, position: u64, len: usize, nid: Nid) -> Result<Bytes> {
        self.check_metadata(space, position, len, nid)?;
        match (space, self.metabox.get()) {
            (Space::Metabox, Some(metabox)) => content::read(self, &metabox.inode, position, len),
            _ => self.reader.stored(DeviceId(0), position, len),
        }
        .map_err(|error| error.for_inode(nid))
    }

    /// Checks that `len` bytes of metadata exist from `position` on.
    ///
    /// # Errors
    /// The range exceeds the space.
    pub(super) fn check_metadata(&self, space: Space, position: u64, len: usize, nid: Nid) -> Result<()> {
        let place = Place::inode_at(nid, position);
        let end = u64::try_from(len).ok().and_then(|len| position.checked_add(len));
        if end.is_none_or(|end| end > self.space_len(space)) {
            return Err(Error::corrupt(
                match (space, self.metabox.get()) {
                    (Space::Image, _) => "metadata past the end of the image",
                    (Space::Metabox, Some(_)) => "metadata past the end of the metabox",
                    (Space::Metabox, None) => "metadata in a missing metabox",
                },
                place,
            ));
        }
        Ok(())
    }
}
