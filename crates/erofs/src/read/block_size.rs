//! The block size of an image (docs/format/erofs.md, Superblock).

use crate::format::{BLOCK_SIZE_LOG2_MAX, BLOCK_SIZE_LOG2_MIN};

/// The block size of an image: a power of two from 512 to 65,536 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BlockSize {
    log2: u8,
}

impl BlockSize {
    /// A block size of `1 << log2` bytes; `None` if it is out of range.
    pub(crate) fn from_log2(log2: u8) -> Option<Self> {
        (BLOCK_SIZE_LOG2_MIN..=BLOCK_SIZE_LOG2_MAX).contains(&log2).then_some(Self { log2 })
    }

    /// log2 of the block size.
    pub(crate) fn log2(self) -> u8 {
        self.log2
    }

    /// The block size in bytes.
    pub(crate) fn bytes(self) -> u64 {
        1 << self.log2
    }

    /// The offset of `position` within its block.
    pub(crate) fn offset_within(self, position: u64) -> u64 {
        position & (self.bytes() - 1)
    }

    /// The offset of a block in bytes; `None` past the address space.
    pub(crate) fn position(self, block: u64) -> Option<u64> {
        block.checked_mul(self.bytes())
    }

    /// The number of blocks needed for `len` bytes.
    pub(crate) fn blocks(self, len: u64) -> u64 {
        len.div_ceil(self.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::BlockSize;

    #[test]
    fn sizes_are_powers_of_two_in_bounds() {
        for (log2, bytes) in [(8, None), (9, Some(512)), (12, Some(4096)), (16, Some(65_536)), (17, None), (255, None)]
        {
            assert_eq!(BlockSize::from_log2(log2).map(BlockSize::bytes), bytes, "{log2}");
        }
    }

    #[test]
    fn positions_are_in_blocks() {
        let size = BlockSize::from_log2(9).expect("512 is a block size");
        for (position, within) in [(0, 0), (1, 1), (511, 511), (512, 0), (u64::MAX, 511)] {
            assert_eq!(size.offset_within(position), within, "{position}");
        }
        assert_eq!(size.position(u64::MAX), None);
        assert_eq!(size.blocks(513), 2);
    }
}
