//! Where the image has the data of a file.

use std::num::NonZeroU64;

use floe_erofs::write::Chunks;

use super::{extent_pool::PooledExtents, inline_data::InlineData};
use crate::tree::run::Run;

/// Where the image has the data of a file. There may be millions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum DataLocation {
    /// Contiguous blocks, and inline data after the inode.
    Flat { start_block: Option<NonZeroU64>, inline: InlineData },
    /// Pclusters.
    Compressed(CompressedFile),
    /// Entirely in the packed inode.
    Fragment { offset: u64 },
    /// Chunks.
    Chunked(Box<Chunks>),
    /// Shared with another file: its index in tree order.
    SameAs(usize),
}

/// A file that consists of pclusters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CompressedFile {
    pub(crate) extents: PooledExtents,
    /// A `COMPRESSION_` number.
    pub(crate) algorithm: u8,
    end_kind: EndKind,
    /// What the kind says.
    end: u64,
}

/// How the last extent of a compressed file is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum EndKind {
    /// Like the others.
    Blocks,
    /// After the inode.
    Inline,
    /// In the packed inode.
    Fragment,
}

impl CompressedFile {
    /// A file with inline data or a fragment at its end, or neither.
    pub(crate) fn new(extents: PooledExtents, algorithm: u8, inline: InlineData, fragment_offset: Option<u64>) -> Self {
        let (end_kind, end) = match fragment_offset {
            Some(offset) => (EndKind::Fragment, offset),
            None if inline.is_empty() => (EndKind::Blocks, 0),
            None => (EndKind::Inline, inline.to_bits()),
        };
        Self { extents, algorithm, end_kind, end }
    }

    /// The stored bytes of the last extent if they are inline.
    pub(crate) fn inline(&self) -> InlineData {
        if self.end_kind == EndKind::Inline { InlineData::from_bits(self.end) } else { InlineData::NONE }
    }

    /// Where the packed inode has the last extent, if it has.
    pub(crate) fn fragment_offset(&self) -> Option<u64> {
        (self.end_kind == EndKind::Fragment).then_some(self.end)
    }
}

impl DataLocation {
    /// A file without data.
    pub(crate) const EMPTY: Self = Self::Flat { start_block: None, inline: InlineData::NONE };

    /// Blocks from this one on, if there are any, and inline data. Block 0 has the superblock, and no data.
    pub(crate) fn flat(start_block: Option<u64>, inline: InlineData) -> Self {
        Self::Flat { start_block: start_block.and_then(NonZeroU64::new), inline }
    }

    /// Runs of an extra device. All but the last end with a block. `tail` is the block of the image that has the last block of
    /// the file, if the device does not have that.
    pub(crate) fn of_runs(device: u16, runs: &[Run], tail: Option<u64>, size: u64, block_size: u64) -> Self {
        let mut chunks = Chunks::new(0);
        let mut at = 0;
        for run in runs {
            let (first, count) = (run.offset / block_size, run.len.div_ceil(block_size));
            chunks.push_holes(first - at);
            chunks.push_blocks(device, run.position / block_size, count);
            at = first + count;
        }
        let count = size.div_ceil(block_size) - at;
        chunks.push_holes(count - u64::from(tail.is_some()));
        if let Some(block) = tail {
            chunks.push_blocks(0, block, 1);
        }
        Self::Chunked(Box::new(chunks))
    }

    /// Changes the offset in the packed inode.
    pub(crate) fn move_fragment(&mut self, moved: impl Fn(u64) -> u64) {
        match self {
            Self::Fragment { offset } => *offset = moved(*offset),
            Self::Compressed(CompressedFile { end_kind: EndKind::Fragment, end, .. }) => *end = moved(*end),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_are_small() {
        assert!(size_of::<DataLocation>() <= 24);
    }
}
