//! Which format an image has.

use std::{fmt, sync::Arc};

use floe_erofs::Erofs;
use floe_image::{BlockReader, Error, FileSystem, ImageSource, Result};

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

const EROFS_MAGIC: [u8; 4] = 0xE0F5_E1E2_u32.to_le_bytes();

const SQUASHFS_MAGIC: [u8; 4] = *b"hsqs";

impl Format {
    /// The format whose magic number `source` has; `None` where it has none, or is too short to have one.
    pub(crate) fn of(source: &dyn ImageSource) -> std::io::Result<Option<Self>> {
        let has = |offset: u64, magic: [u8; 4]| {
            let mut found = [0; 4];
            let is_long_enough = source.len() >= offset + found.len() as u64;
            if is_long_enough {
                source.read_at(offset, &mut found)?;
            }
            Ok::<_, std::io::Error>(is_long_enough && found == magic)
        };
        // An EROFS image may begin with anything; a SquashFS image may hold anything behind its superblock. One with
        // both magics is taken as the kernel's mount without `-t` would: by its first bytes.
        if has(0, SQUASHFS_MAGIC)? {
            return Ok(Some(Self::Squashfs));
        }
        Ok(has(EROFS_SUPERBLOCK_OFFSET, EROFS_MAGIC)?.then_some(Self::Erofs))
    }

    /// Opens the image that `reader` gives the bytes of.
    pub(crate) fn open(self, reader: Arc<dyn BlockReader>) -> Result<Arc<dyn FileSystem>> {
        match self {
            Self::Erofs => Ok(Arc::new(Erofs::open(reader)?)),
            Self::Squashfs => Err(Error::unsupported(format!("reading {self}"))),
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
