//! Which format an image has.

use std::{fmt, sync::Arc};

use floe_erofs::Erofs;
use floe_image::{BlockReader, FileSystem, ImageSource, Result};
use floe_squashfs::{Squashfs, is_squashfs};

/// The formats, told apart by content.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Format {
    /// EROFS.
    Erofs,
    /// SquashFS 4.0.
    Squashfs,
}

/// Where the superblock of EROFS begins, in bytes.
const EROFS_SUPERBLOCK_OFFSET: u64 = 1024;

const EROFS_MAGIC: [u8; 4] = floe_erofs::format::SUPER_MAGIC_V1.to_le_bytes();

impl Format {
    /// The format whose magic number `source` has; `None` where it has none, or is too short to have one.
    pub(crate) fn of(source: &dyn ImageSource) -> std::io::Result<Option<Self>> {
        let four_bytes = |offset: u64| {
            let mut found = [0; 4];
            let is_long_enough = source.len() >= offset + found.len() as u64;
            if is_long_enough { source.read_at(offset, &mut found).map(|()| Some(found)) } else { Ok(None) }
        };
        // An EROFS image may begin with anything, and a SquashFS image may hold anything behind its superblock: the first
        // bytes decide.
        if four_bytes(0)?.is_some_and(|head| is_squashfs(&head)) {
            return Ok(Some(Self::Squashfs));
        }
        Ok((four_bytes(EROFS_SUPERBLOCK_OFFSET)? == Some(EROFS_MAGIC)).then_some(Self::Erofs))
    }

    /// Opens the image that `reader` gives the bytes of.
    pub(crate) fn open(self, reader: Arc<dyn BlockReader>) -> Result<Arc<dyn FileSystem>> {
        match self {
            Self::Erofs => Ok(Arc::new(Erofs::open(reader)?)),
            Self::Squashfs => Ok(Arc::new(Squashfs::open(reader)?)),
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Erofs => "EROFS",
            Self::Squashfs => "SquashFS",
        })
    }
}
