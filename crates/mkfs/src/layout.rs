//! How an image lies in its file, and which of the format's freedoms it takes.

use floe_erofs::format;

use crate::{
    error::{Error, Result},
    hints::Coding,
};

/// How long the extended attributes of the root can be made, in bytes.
const ROOT_XATTR_LEN_MAX: u32 = 65_532;

/// How an image lies in its file, and which of the format's freedoms it takes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Where in the file the image begins, in bytes. A regular file has zeros before it.
    pub offset: u64,
    /// The number of blocks is a multiple of this, a power of two.
    pub blocks_multiple: u32,
    /// The data of each file that has blocks begins at a multiple of so many blocks.
    pub data_unit_blocks: u32,
    /// Whether the superblock has a checksum.
    pub checksum: bool,
    /// The most bytes of a file that one pcluster holds, at least the block size.
    pub extent_bytes_max: Option<u32>,
    /// How long the extended attributes of the root are at least, in bytes, so that some can be added in place.
    pub root_xattr_bytes: u32,
    /// Whether directories are in the packed inode, and compressed with it.
    pub packs_directories: bool,
    /// How the packed inode is compressed; `None` as files are.
    pub packed_coding: Option<Coding>,
    /// Whether inodes are in an inode of their own, and how that is compressed.
    pub metabox: Metabox,
}

/// Where inodes are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Metabox {
    /// In blocks of the image.
    #[default]
    None,
    /// In the metabox inode, which is compressed in this way, or is not.
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
    /// The codings that only inodes have which are no files.
    pub(crate) fn codings(&self) -> impl Iterator<Item = Coding> {
        let metabox = match self.metabox {
            Metabox::Inode(coding) => coding,
            Metabox::None => None,
        };
        self.packed_coding.into_iter().chain(metabox)
    }

    /// The room that the attributes of the root have at least, in bytes.
    pub(crate) fn root_xattr_len(&self) -> usize {
        match usize::try_from(self.root_xattr_bytes).unwrap_or(usize::MAX) {
            0 => 0,
            wanted => wanted.next_multiple_of(4).max(format::XattrIbodyHeader::SIZE),
        }
    }

    /// Refuses what is out of range.
    pub(crate) fn check(&self, block_size: u64) -> Result<()> {
        let refuse = |reason: String| Err(Error::Option(reason));
        if !self.blocks_multiple.is_power_of_two() {
            return refuse("the number of blocks can only be a multiple of a power of two".into());
        }
        if self.data_unit_blocks == 0 {
            return refuse("data begins at multiples of at least 1 block".into());
        }
        if self.extent_bytes_max.is_some_and(|max| u64::from(max) < block_size) {
            return refuse(format!("an extent has at least the {block_size} bytes of a block"));
        }
        if self.root_xattr_bytes > ROOT_XATTR_LEN_MAX {
            return refuse(format!("the attributes of the root take at most {ROOT_XATTR_LEN_MAX} bytes"));
        }
        Ok(())
    }
}
