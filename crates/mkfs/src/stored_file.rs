//! Where the data of a file went.

use floe_erofs::write::{Chunks, CompressedExtent};

/// Where the data of a file went.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum StoredFile {
    /// Into blocks in a row, but for what stands behind the inode.
    Flat { start_block: Option<u64>, inline: Vec<u8> },
    /// Into pclusters.
    Compressed {
        /// A `COMPRESSION_` number.
        algorithm: u8,
        extents: Vec<CompressedExtent>,
        /// The stored bytes of the last extent, if they stand behind the inode.
        inline: Vec<u8>,
        fragment_offset: Option<u64>,
    },
    /// All of it into the packed inode.
    Fragment { offset: u64 },
    /// Into chunks.
    Chunked { chunks: Chunks },
    /// To where that of another file went: its place in the order of the image.
    SameAs(usize),
}

/// What became of an inode that is no file of the tree, and its size in bytes.
pub(crate) type StoredInode = (StoredFile, u64);

impl StoredFile {
    /// A file without data.
    pub(crate) const EMPTY: Self = Self::Flat { start_block: None, inline: Vec::new() };

    /// Changes where in the packed inode it is.
    pub(crate) fn move_fragment(&mut self, moved: impl Fn(u64) -> u64) {
        match self {
            Self::Fragment { offset } | Self::Compressed { fragment_offset: Some(offset), .. } => {
                *offset = moved(*offset);
            }
            _ => {}
        }
    }
}
