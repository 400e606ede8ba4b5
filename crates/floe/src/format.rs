//! An open image as its concrete format.

use std::sync::Arc;

use floe_erofs::{Erofs, SuperblockChecksum};
use floe_image::{BlockReader, FileSystem, Result};
use floe_source::ImageFormat;
use floe_squashfs::Squashfs;

/// An open image as its concrete format, for operations that only one format has.
#[derive(Clone)]
pub enum FormatImage {
    /// EROFS.
    Erofs(Arc<Erofs>),
    /// SquashFS 4.
    Squashfs(Arc<Squashfs>),
}

impl FormatImage {
    /// Opens the image whose bytes `reader` returns.
    pub(crate) fn open(
        format: ImageFormat,
        reader: Arc<dyn BlockReader>,
        superblock_checksum: SuperblockChecksum,
    ) -> Result<Self> {
        Ok(match format {
            ImageFormat::Erofs => Self::Erofs(Arc::new(Erofs::open_with(reader, superblock_checksum)?)),
            ImageFormat::Squashfs => Self::Squashfs(Arc::new(Squashfs::open(reader)?)),
        })
    }

    /// The format.
    pub fn format(&self) -> ImageFormat {
        match self {
            Self::Erofs(_) => ImageFormat::Erofs,
            Self::Squashfs(_) => ImageFormat::Squashfs,
        }
    }

    /// The operations that both formats have.
    pub(crate) fn file_system(&self) -> Arc<dyn FileSystem> {
        match self {
            Self::Erofs(erofs) => Arc::clone(erofs) as Arc<dyn FileSystem>,
            Self::Squashfs(squashfs) => Arc::clone(squashfs) as Arc<dyn FileSystem>,
        }
    }
}
