//! The layout of the image in its file, and optional features of the format.

use floe_erofs::format;

use super::Coding;
use crate::error::{Error, Result};

/// The largest reserved length of the root's xattrs in bytes.
const ROOT_XATTR_LEN_MAX: u32 = 65_532;

/// The layout of the image in its file, and optional features of the format.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layout {
    /// The offset of the image in its file, in bytes. A regular file has zeros before it.
    pub offset: u64,
    /// The number of blocks is rounded up to a multiple of this power of two.
    pub blocks_multiple: u32,
    /// The data of each file with blocks is aligned to this many blocks.
    pub data_unit_blocks: u32,
    /// Whether the superblock has a checksum.
    pub checksum: bool,
    /// The maximum number of file bytes in one pcluster; at least the block size.
    pub extent_bytes_max: Option<u32>,
    /// The minimum length of the root's xattrs in bytes, to reserve space for additions in place.
    pub root_xattr_bytes: u32,
    /// Whether directories are stored, compressed, in the packed inode.
    pub packs_directories: bool,
    /// The coding of the packed inode; `None` uses that of files.
    pub packed_coding: Option<Coding>,
    /// Whether inodes are stored in the metabox inode, and its coding.
    pub metabox: Metabox,
}

/// The location of inodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Metabox {
    /// In blocks of the image.
    #[default]
    None,
    /// In the metabox inode, with this coding or uncompressed.
    Inode(Option<Coding>),
}

impl Default for Layout {
    fn default() -> Self {
        Self {
            offset: 0,
            blocks_multiple: 1,
            data_unit_blocks: 1,
            checksum: true,
            extent_bytes_max: None,
            root_xattr_bytes: 0,
            packs_directories: false,
            packed_coding: None,
            metabox: Metabox::None,
        }
    }
}

impl Layout {
    /// The codings of special inodes.
    pub(crate) fn codings(&self) -> impl Iterator<Item = Coding> {
        let metabox = match self.metabox {
            Metabox::Inode(coding) => coding,
            Metabox::None => None,
        };
        self.packed_coding.into_iter().chain(metabox)
    }

    /// The minimum length of the root's xattrs in bytes.
    pub(crate) fn root_xattr_len(&self) -> usize {
        match usize::try_from(self.root_xattr_bytes).unwrap_or(usize::MAX) {
            0 => 0,
            wanted => wanted.next_multiple_of(4).max(format::XattrIbodyHeader::SIZE),
        }
    }

    /// Rejects values out of range.
    pub(crate) fn check(&self, block_size: u64) -> Result<()> {
        let refuse = |reason: String| Err(Error::Option(reason));
        if !self.blocks_multiple.is_power_of_two() {
            return refuse("the multiple of the number of blocks must be a power of two".into());
        }
        if self.data_unit_blocks == 0 {
            return refuse("the alignment of data must be at least 1 block".into());
        }
        if self.extent_bytes_max.is_some_and(|max| u64::from(max) < block_size) {
            return refuse(format!("the maximum extent size must be at least the block size of {block_size} bytes"));
        }
        if self.root_xattr_bytes > ROOT_XATTR_LEN_MAX {
            return refuse(format!("the xattrs of the root must not exceed {ROOT_XATTR_LEN_MAX} bytes"));
        }
        Ok(())
    }
}
