//! The use of an image's blocks, and the bytes that directories occupy.

use std::collections::HashMap;

use floe_image::{ByteRange, ByteRangeSet, DeviceId, StoredLen};

use crate::read::{
    layout::{Piece, PieceData},
    parameters::Space,
};

/// Records the use of blocks on all devices. Memory grows with the number of runs of blocks, not with their length.
///
/// Runs that begin with the same block share it on purpose. Any other overlap is a fault.
pub(super) struct Marks {
    block_size: u64,
    devices: HashMap<DeviceId, Uses>,
}

/// The blocks of a device by use.
#[derive(Default)]
struct Uses {
    /// Blocks of inodes, xattrs, indexes and the superblock.
    metadata: ByteRangeSet,
    /// The first blocks of data runs, and all blocks of runs that are shared block by block.
    first: ByteRangeSet,
    /// The other blocks of data runs.
    further: ByteRangeSet,
}

impl Marks {
    pub(super) fn new(block_size: u64) -> Self {
        Self { block_size, devices: HashMap::new() }
    }

    /// Marks the blocks that metadata in `range` touches; returns whether data uses one of them.
    pub(super) fn metadata(&mut self, device: DeviceId, range: ByteRange) -> bool {
        let blocks = ByteRange::between(range.offset() / self.block_size, range.end().div_ceil(self.block_size));
        let uses = self.devices.entry(device).or_default();
        uses.metadata.insert(blocks);
        uses.first.intersects(blocks) || uses.further.intersects(blocks)
    }

    /// Marks the blocks of a data run; returns whether one of them has another use. A block that the run uses only in
    /// part may be shared, except the last one, whose rest is padding. If the run `is_chunk`, any block may be shared
    /// with another chunk.
    pub(super) fn data(&mut self, device: DeviceId, range: ByteRange, is_chunk: bool) -> bool {
        let start = range.offset().div_ceil(self.block_size);
        let is_aligned = range.offset().is_multiple_of(self.block_size);
        let end = if is_aligned { range.end().div_ceil(self.block_size) } else { range.end() / self.block_size };
        let blocks = ByteRange::between(start, end);
        let first = ByteRange::new(
            start,
            if !is_aligned {
                0
            } else if is_chunk {
                u64::MAX
            } else {
                1
            },
        );
        let first = first.intersection(blocks);
        let further = ByteRange::between(first.end().max(start), end);
        let uses = self.devices.entry(device).or_default();
        let overlaps =
            uses.metadata.intersects(blocks) || uses.further.intersects(first) || uses.first.intersects(further);
        uses.first.insert(first);
        uses.further.insert(further);
        overlaps
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlaps_are_distinguished_from_shared_beginnings() {
        const IMAGE: DeviceId = DeviceId(0);
        let mut marks = Marks::new(4096);
        for (is_data, start, len, expected) in [
            (false, 1024, 128, false),
            (true, 4096, 8192, false),
            (true, 4096, 100, false),
            (true, 8192, 4096, true),
            (true, 0, 4096, true),
            (true, 16384, 5000, false),
            (true, 20480, 4096, true),
            (false, 16384, 1, true),
            (true, 40000, 5000, false),
            (true, 45000, 5000, false),
            (true, 1 << 40, 4096, false),
        ] {
            let range = ByteRange::new(start, len);
            let overlaps = if is_data { marks.data(IMAGE, range, false) } else { marks.metadata(IMAGE, range) };
            assert_eq!(overlaps, expected, "{range}");
        }
        assert!(!marks.data(DeviceId(1), ByteRange::new(0, 8192), true));
        assert!(!marks.data(DeviceId(1), ByteRange::new(4096, 8192), true));
        assert!(!marks.data(DeviceId(1), ByteRange::new(8192, 8192), false));
        assert!(marks.data(DeviceId(1), ByteRange::new(12288, 4096), true));
    }
}
