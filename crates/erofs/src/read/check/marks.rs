//! Which blocks of an image are used, and for what.

use std::collections::HashMap;

use floe_image::{ByteRange, DeviceId};

/// How many blocks one page of marks covers.
const PAGE_BLOCKS: u64 = 1 << 15;
/// How many pages of marks there are at most, over all devices: 12 KiB each, so 192 MiB, for 2 TiB of 4 KiB blocks.
const PAGES_MAX: usize = 1 << 14;
/// How many marks one word holds.
const WORD_BITS: u64 = 64;

/// What a block is used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Use {
    /// Inodes, xattrs, indexes, the superblock.
    Metadata,
    /// The first block of a run of data, or any of a run that is shared block by block.
    First,
    /// A further block of a run of data.
    Further,
}

/// The marks of the blocks of all devices.
///
/// A block that two runs of data begin with is shared on purpose. Any other overlap is a fault.
pub(super) struct Marks {
    block_size: u64,
    pages: HashMap<(DeviceId, u64), Page>,
    is_full: bool,
}

/// One bit for each use of each block.
type Page = [Vec<u64>; 3];

impl Marks {
    pub(super) fn new(block_size: u64) -> Self {
        Self { block_size, pages: HashMap::new(), is_full: false }
    }

    /// Whether there were more blocks than there is room for marks.
    pub(super) fn is_full(&self) -> bool {
        self.is_full
    }

    /// Marks the blocks that metadata in `range` touches; says whether one of them is used for data.
    pub(super) fn metadata(&mut self, device: DeviceId, range: ByteRange) -> bool {
        let end = range.end().div_ceil(self.block_size);
        let mut overlaps = false;
        for block in range.offset() / self.block_size..end {
            overlaps |= self.mark(device, block, Use::Metadata, &[Use::First, Use::Further]);
        }
        overlaps
    }

    /// Marks the blocks of a run of data; says whether one of them is used for something else. A block that the run
    /// takes only a part of may be shared, but for the last one, whose rest is padding; where the run `is_chunk`, any
    /// block may be shared with another chunk.
    pub(super) fn data(&mut self, device: DeviceId, range: ByteRange, is_chunk: bool) -> bool {
        let first = range.offset().div_ceil(self.block_size);
        let is_aligned = range.offset().is_multiple_of(self.block_size);
        let end = if is_aligned { range.end().div_ceil(self.block_size) } else { range.end() / self.block_size };
        let mut overlaps = false;
        for block in first..end {
            overlaps |= if (block == first || is_chunk) && is_aligned {
                self.mark(device, block, Use::First, &[Use::Metadata, Use::Further])
            } else {
                self.mark(device, block, Use::Further, &[Use::Metadata, Use::First])
            };
            if self.is_full {
                break;
            }
        }
        overlaps
    }

    /// Marks a block; says whether it has one of the marks in `against`.
    fn mark(&mut self, device: DeviceId, block: u64, new: Use, against: &[Use]) -> bool {
        let key = (device, block / PAGE_BLOCKS);
        if self.pages.len() >= PAGES_MAX && !self.pages.contains_key(&key) {
            self.is_full = true;
            return false;
        }
        let words = usize::try_from(PAGE_BLOCKS / WORD_BITS).unwrap_or(0);
        let page = self.pages.entry(key).or_insert_with(|| [vec![0; words], vec![0; words], vec![0; words]]);
        let word = usize::try_from(block % PAGE_BLOCKS / WORD_BITS).unwrap_or(0);
        let bit = 1u64 << (block % WORD_BITS);
        let [metadata, first, further] = page;
        let mut overlaps = false;
        for (marks, of) in [(metadata, Use::Metadata), (first, Use::First), (further, Use::Further)] {
            if let Some(marks) = marks.get_mut(word) {
                overlaps |= against.contains(&of) && *marks & bit != 0;
                *marks |= if of == new { bit } else { 0 };
            }
        }
        overlaps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlaps_are_told_from_shared_beginnings() {
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
        assert!(!marks.is_full());
    }
}
