//! A run of a file's bytes, before it is followed into the special inodes.

use floe_image::{ByteRange, DeviceId, StoredBlock};

use super::volume::Space;

/// A run of a file's bytes and what its inode says of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Piece {
    /// The bytes of the file; never empty, never past its size.
    pub(super) range: ByteRange,
    /// Where they are.
    pub(super) data: PieceData,
}

/// Where the bytes of a [`Piece`] are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PieceData {
    /// Nowhere.
    Hole,
    /// On a device, as they are.
    Stored { device: DeviceId, offset: u64 },
    /// In the metadata, as they are.
    Inline { space: Space, position: u64 },
    /// Encoded; the first of them is the block's first decoded byte.
    Encoded(StoredBlock),
    /// In the packed inode, from this byte on.
    Fragment { offset: u64 },
}

impl Piece {
    /// The part of a run of stored bytes that is in `range`; the first byte of the run is `range`'s.
    pub(super) fn hole(range: ByteRange) -> Self {
        Self { range, data: PieceData::Hole }
    }
}
