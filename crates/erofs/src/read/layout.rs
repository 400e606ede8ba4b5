//! The data layouts of inodes (docs/format/erofs.md, Where data is).
//!
//! Each layout has a file and a type that finds the [`Piece`] with a given byte. [`DataMap`] is one of these types.

mod chunks;
mod compact_index;
mod compressed;
mod encoded_extents;
mod flat;
mod full_index;
mod lcluster_map;
mod pcluster;

pub(super) use self::{
    chunks::Chunks,
    compressed::{CompressedMap, read_header},
    pcluster::{Coding, CompressedExtent, Pcluster},
};

use floe_image::{ByteRange, DeviceId, Result, StoredBlock};

use self::flat::{Flat, FlatInline};
use super::{
    inode::{Inode, Layout},
    window::{Metadata, Window},
};
use crate::read::parameters::Space;

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

/// A run of file bytes as its inode describes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Piece {
    /// The range within the file; never empty, never past its size.
    pub(in crate::read) range: ByteRange,
    /// The location of the bytes.
    pub(in crate::read) data: PieceData,
}

/// The location of a [`Piece`]'s bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PieceData {
    /// A hole.
    Hole,
    /// Uncompressed bytes of a device.
    Stored { device: DeviceId, offset: u64 },
    /// Uncompressed bytes in the metadata.
    Inline { space: Space, position: u64 },
    /// A block; the piece starts with its first decoded byte.
    Encoded(StoredBlock),
    /// Bytes of the packed inode at this offset.
    Fragment { offset: u64 },
}

impl Piece {
    /// A hole that covers `range`.
    pub(in crate::read) fn hole(range: ByteRange) -> Self {
        Self { range, data: PieceData::Hole }
    }
}

/// The index entry of one lcluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lcluster {
    /// An extent begins in the lcluster.
    Head(Head),
    /// The lcluster belongs entirely to an extent that begins in an earlier one.
    NonHead {
        /// How many lclusters back the head is, as far as this entry states.
        to_head: u64,
        /// How many lclusters ahead the next head is, as far as this entry states.
        to_next_head: u64,
        /// The block count of the pcluster; only the first lcluster after a head states it.
        block_count: Option<u64>,
    },
}

/// The beginning of an extent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Head {
    kind: HeadKind,
    /// The offset in the lcluster at which the extent begins, in bytes.
    offset: u64,
    /// The first block of the pcluster.
    block: u64,
    /// The extent is a hole and has no pcluster.
    is_hole: bool,
    /// The pcluster decodes to more than the extent.
    is_partial: bool,
}

/// The encoding of an extent's pcluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum HeadKind {
    /// Uncompressed.
    Plain,
    /// Compressed with the inode's first algorithm.
    First,
    /// Compressed with the inode's second algorithm.
    Second,
}

/// A decoded index entry and its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Loaded {
    lcluster: Lcluster,
    /// The position after the record, or after the pack that contains the entry.
    record_end: u64,
}
