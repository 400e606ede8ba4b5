//! The storage of a file's data.

use floe_erofs::write::{Chunks, CompressedExtent};

/// The storage of a file's data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum StoredFile {
    /// Contiguous blocks, and inline data after the inode.
    Flat { start_block: Option<u64>, inline: Vec<u8> },
    /// Pclusters.
    Compressed {
        /// A `COMPRESSION_` number.
        algorithm: u8,
        extents: Vec<CompressedExtent>,
        /// The stored bytes of the last extent if it is inline.
        inline: Vec<u8>,
        fragment_offset: Option<u64>,
    },
    /// Entirely in the packed inode.
    Fragment { offset: u64 },
    /// Chunks.
    Chunked { chunks: Chunks },
    /// Shared with another file: its index in image order.
    SameAs(usize),
}

/// The storage and the size in bytes of a special inode.
pub(crate) type StoredInode = (StoredFile, u64);

impl StoredFile {
    /// A file without data.
    pub(crate) const EMPTY: Self = Self::Flat { start_block: None, inline: Vec::new() };

    /// Changes the offset in the packed inode.
    pub(crate) fn move_fragment(&mut self, moved: impl Fn(u64) -> u64) {
        match self {
            Self::Fragment { offset } | Self::Compressed { fragment_offset: Some(offset), .. } => {
                *offset = moved(*offset);
            }
            _ => {}
        }
    }
}
