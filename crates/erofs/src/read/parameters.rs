//! What the superblock and the tables behind it state about an image.

use std::sync::OnceLock;

use floe_image::{BlockReader, DeviceId, Error, Nid, Place, Result};

use super::{algorithms::Algorithms, device_table::Devices, length_sums::LengthSums, superblock::Superblock};

/// The address spaces of metadata.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Space {
    /// In the image itself.
    Image,
    /// The content of the metabox inode.
    Metabox,
}

/// What an open image states about itself, and what was learnt from it. None of it depends on the reader.
pub(super) struct Parameters {
    pub(super) superblock: Superblock,
    pub(super) devices: Devices,
    pub(super) algorithms: Algorithms,
    /// The length of the image itself, in bytes.
    pub(super) image_len: u64,
    /// The known sums of stored lengths.
    pub(super) length_sums: LengthSums,
    /// The length of the metabox in bytes, if there is one.
    pub(super) metabox_len: OnceLock<u64>,
    /// The device number of the metabox's content, if the reader supports derived sources.
    pub(super) metabox_device: OnceLock<DeviceId>,
}

impl Parameters {
    /// Reads the device table and the configurations of algorithms of the image in `reader`.
    ///
    /// # Errors
    /// They break the format or use unsupported features.
    pub(super) fn read(reader: &dyn BlockReader, superblock: Superblock) -> Result<Self> {
        Ok(Self {
            devices: Devices::read(reader, &superblock)?,
            algorithms: Algorithms::read(reader, &superblock)?,
            image_len: reader.device_len(DeviceId(0))?,
            length_sums: LengthSums::default(),
            metabox_len: OnceLock::new(),
            metabox_device: OnceLock::new(),
            superblock,
        })
    }

    /// The number of metadata bytes in `space`.
    pub(super) fn space_len(&self, space: Space) -> u64 {
        match space {
            Space::Image => self.image_len,
            Space::Metabox => self.metabox_len.get().copied().unwrap_or(0),
        }
    }

    /// Checks that `len` bytes of metadata exist from `position` on, for inode `nid`.
    ///
    /// # Errors
    /// The range exceeds the space.
    pub(super) fn check_metadata(&self, space: Space, position: u64, len: usize, nid: Nid) -> Result<()> {
        let end = u64::try_from(len).ok().and_then(|len| position.checked_add(len));
        if end.is_some_and(|end| end <= self.space_len(space)) {
            return Ok(());
        }
        let rule = match (space, self.metabox_len.get()) {
            (Space::Image, _) => "metadata past the end of the image",
            (Space::Metabox, Some(_)) => "metadata past the end of the metabox",
            (Space::Metabox, None) => "metadata in a missing metabox",
        };
        Err(Error::corrupt(rule, Place::inode_at(nid, position)))
    }

    /// The device number under which the metabox's content is read.
    ///
    /// # Errors
    /// The reader does not support derived sources.
    pub(super) fn metabox_device(&self) -> Result<DeviceId> {
        self.metabox_device.get().copied().ok_or(Error::unsupported("compressed data inside compressed metadata"))
    }
}
