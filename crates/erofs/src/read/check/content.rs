//! What directories take.

use std::collections::HashMap;

use floe_image::{ByteRange, ByteRangeSet, DeviceId, StoredLen};

use crate::read::{
    piece::{Piece, PieceData},
    volume::Space,
};

/// What directories take: each entry stands in one directory alone. If directories could share blocks, a small image
/// would have more entries than anybody can go through.
#[derive(Default)]
pub(super) struct Contents {
    taken: HashMap<Area, ByteRangeSet>,
}

/// Where the bytes of directories may be.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Area {
    Device(DeviceId),
    Image,
    Metabox,
    Packed,
}

impl Contents {
    /// Takes a piece for a directory; `false` where a part of it is another one's.
    pub(super) fn take(&mut self, piece: &Piece) -> bool {
        let (area, offset, len) = match piece.data {
            PieceData::Hole => return true,
            PieceData::Stored { device, offset } => (Area::Device(device), offset, piece.range.len()),
            PieceData::Inline { space: Space::Image, position } => (Area::Image, position, piece.range.len()),
            PieceData::Inline { space: Space::Metabox, position } => (Area::Metabox, position, piece.range.len()),
            PieceData::Fragment { offset } => (Area::Packed, offset, piece.range.len()),
            PieceData::Encoded(block) => {
                let len = if let StoredLen::Known(len) = block.stored_len { u64::from(len) } else { 1 };
                (Area::Device(block.device), block.offset, len)
            }
        };
        !self.taken.entry(area).or_default().insert(ByteRange::new(offset, len))
    }
}
