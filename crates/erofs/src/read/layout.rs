//! The data layouts of inodes (docs/format/erofs.md, Where data is).
//!
//! Each layout has a file and a type that finds the [`Piece`] with a given byte. [`DataMap`] is one of these types.

mod chunks;
mod compact_index;
mod compressed;
mod encoded_extents;
mod flat;
mod full_index;
mod lcluster;
mod lcluster_map;
mod pcluster;
mod piece;

use floe_image::{ByteRange, Result};

use self::flat::{Flat, FlatInline};
pub(super) use self::{
    chunks::Chunks,
    compressed::{CompressedMap, read_header},
    pcluster::{Coding, CompressedExtent, Pcluster},
    piece::{Piece, PieceData},
};
use super::{
    inode::{Inode, Layout},
    window::{Metadata, Window},
};

/// Where the data of an inode is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum DataMap {
    /// A compressed file without bytes, which has no map header.
    Empty,
    /// Contiguous blocks.
    Flat(Flat),
    /// Contiguous blocks, and a tail after the inode.
    FlatInline(FlatInline),
    /// Chunks.
    Chunks(Chunks),
    /// Pclusters.
    Compressed(CompressedMap),
}

impl DataMap {
    /// Reads what the layout of `inode` needs to find any byte.
    ///
    /// # Errors
    /// The map header, or the index of the last lcluster, cannot be read or breaks the format.
    pub(super) fn read(metadata: &dyn Metadata, inode: &Inode) -> Result<Self> {
        Ok(match inode.layout {
            Layout::Flat { start_block } => Self::Flat(Flat { start_block }),
            Layout::FlatInline { start_block } => Self::FlatInline(FlatInline { start_block }),
            Layout::Chunked(format) => Self::Chunks(Chunks { format }),
            Layout::Compressed { .. } if inode.size == 0 => Self::Empty,
            Layout::Compressed { is_compact } => Self::Compressed(CompressedMap::read(metadata, inode, is_compact)?),
        })
    }

    /// The piece that contains byte `position`, which must be before the end of `inode`.
    ///
    /// # Errors
    /// The map cannot be read or breaks the format.
    pub(super) fn piece_at(&self, inode: &Inode, window: &mut Window<'_>, position: u64) -> Result<Piece> {
        match self {
            Self::Empty => Ok(Piece::hole(ByteRange::new(0, inode.size))),
            Self::Flat(flat) => flat.piece_at(inode, window),
            Self::FlatInline(flat) => flat.piece_at(inode, window, position),
            Self::Chunks(chunks) => chunks.piece_at(inode, window, position),
            Self::Compressed(map) => {
                map.extent_at(inode, window, position)?.piece_at(window.parameters(), inode.nid, position)
            }
        }
    }

    /// The map of pclusters; `None` if the data is not compressed.
    pub(super) fn compressed(&self) -> Option<&CompressedMap> {
        match self {
            Self::Compressed(map) => Some(map),
            Self::Empty | Self::Flat(_) | Self::FlatInline(_) | Self::Chunks(_) => None,
        }
    }
}
