//! The bytes that directories occupy.

use std::collections::HashMap;

use floe_image::{ByteRange, ByteRangeSet, DeviceId, StoredLen};

use crate::read::{
    layout::{Piece, PieceData},
    parameters::Space,
};

/// The bytes that directories occupy. No two directories may share bytes. Otherwise, a small image could have so many
/// entries that a walk never ends.
#[derive(Default)]
pub(super) struct Contents {
    taken: HashMap<Area, ByteRangeSet>,
}

/// The areas that may hold directory content.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Area {
    Device(DeviceId),
    Image,
    Metabox,
    Packed,
}

impl Contents {
    /// Claims a piece for a directory; `false` if another directory has claimed part of it.
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
