//! An image as its parts: what every read starts from.

use std::{
    ops::Deref,
    sync::{Arc, OnceLock},
};

use floe_image::{BlockReader, Bytes, DeviceId, Error, FileType, Nid, Place, Result};

use super::{
    algorithms::Algorithms, compressed::CompressedLayout, content, device_table::Devices, inode::Inode,
    length_sums::LengthSums, metabox_source::MetaboxSource, superblock::Superblock,
};

/// Where metadata lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Space {
    /// In the image itself.
    Image,
    /// In the metabox inode's content.
    Metabox,
}

/// An image and the reader of its metadata.
pub(super) struct Volume {
    pub(super) reader: Arc<dyn BlockReader>,
    parts: Arc<Parts>,
}

/// An image as its parts, whoever reads them.
pub(super) struct Parts {
    pub(super) superblock: Superblock,
    pub(super) devices: Devices,
    pub(super) algorithms: Algorithms,
    /// The length of the image itself, in bytes.
    pub(super) image_len: u64,
    /// The inode that holds compressed metadata.
    pub(super) metabox: OnceLock<Special>,
    /// The inode that holds fragments.
    pub(super) packed: OnceLock<Special>,
    /// The sums of stored lengths that are known.
    pub(super) length_sums: LengthSums,
    /// The metabox's content as a device of the reader, where the reader can have such.
    metabox_device: OnceLock<DeviceId>,
}

/// An inode that other inodes' data or metadata is in. It is read for almost every other one, so it is kept.
#[derive(Debug)]
pub(super) struct Special {
    pub(super) inode: Inode,
    layout: OnceLock<CompressedLayout>,
}

impl Special {
    /// An inode to keep.
    pub(super) fn new(inode: Inode) -> Self {
        Self { inode, layout: OnceLock::new() }
    }

    /// How its compressed data is laid out.
    ///
    /// # Errors
    /// As [`CompressedLayout::read`].
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
    /// Opens the image in `reader`, whose superblock is `superblock`.
    ///
    /// # Errors
    /// The image breaks the format or uses what is not known, in what every access needs.
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
        // The packed inode may lie in the metabox.
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

    /// The image of these parts, read by `reader`.
    pub(super) fn of(parts: Arc<Parts>, reader: Arc<dyn BlockReader>) -> Self {
        Self { reader, parts }
    }

    /// The device that the metabox's content is read as.
    ///
    /// # Errors
    /// The reader cannot have such a device.
    pub(super) fn metabox_device(&self) -> Result<DeviceId> {
        self.metabox_device.get().copied().ok_or(Error::unsupported("compressed data inside compressed metadata"))
    }

    /// The special inode `nid`, if it is one.
    pub(super) fn special(&self, nid: Nid) -> Option<&Special> {
        [&self.metabox, &self.packed].into_iter().filter_map(OnceLock::get).find(|special| special.inode.nid == nid)
    }

    /// The number of bytes of metadata that `space` has room for.
    pub(super) fn space_len(&self, space: Space) -> u64 {
        match (space, self.metabox.get()) {
            (Space::Image, _) => self.image_len,
            (Space::Metabox, Some(metabox)) => metabox.inode.size,
            (Space::Metabox, None) => 0,
        }
    }

    /// `len` bytes of metadata from `position` on, read for inode `nid`. `len` is at most
    /// [`BlockReader::STORED_LEN_MAX`](floe_image::BlockReader).
    ///
    /// # Errors
    /// They lie past the end; they cannot be read; the metabox breaks the format.
    pub(super) fn metadata(&self, space: Space, position: u64, len: usize, nid: Nid) -> Result<Bytes> {
        self.check_metadata(space, position, len, nid)?;
        match (space, self.metabox.get()) {
            (Space::Metabox, Some(metabox)) => content::read(self, &metabox.inode, position, len),
            _ => self.reader.stored(DeviceId(0), position, len),
        }
        .map_err(|error| error.for_inode(nid))
    }

    /// That `len` bytes of metadata from `position` on are there.
    ///
    /// # Errors
    /// They are not.
    pub(super) fn check_metadata(&self, space: Space, position: u64, len: usize, nid: Nid) -> Result<()> {
        let place = Place::inode_at(nid, position);
        let end = u64::try_from(len).ok().and_then(|len| position.checked_add(len));
        if end.is_none_or(|end| end > self.space_len(space)) {
            return Err(Error::corrupt(
                match (space, self.metabox.get()) {
                    (Space::Image, _) => "metadata past the end of the image",
                    (Space::Metabox, Some(_)) => "metadata past the end of the metabox",
                    (Space::Metabox, None) => "metadata in a metabox that does not exist",
                },
                place,
            ));
        }
        Ok(())
    }
}
