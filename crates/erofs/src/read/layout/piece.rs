//! A run of file bytes as its inode describes it, before references into special inodes are followed.

use floe_image::{ByteRange, DeviceId, StoredBlock};

use crate::read::parameters::Space;

/// A run of file bytes as its inode describes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::read) struct Piece {
    /// The range within the file; never empty, never past its size.
    pub(in crate::read) range: ByteRange,
    /// The location of the bytes.
    pub(in crate::read) data: PieceData,
}

/// The location of a [`Piece`]'s bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::read) enum PieceData {
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
