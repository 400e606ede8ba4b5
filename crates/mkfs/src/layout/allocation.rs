//! Allocates space in the metadata area.

use floe_erofs::format::INODE_SLOT_SIZE;

/// The maximum number of gaps kept for small inodes.
const GAPS_MAX: usize = 64;

/// The space requirements of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Need {
    /// The length of the inode itself in bytes; it must not cross a block boundary.
    pub(crate) inode_len: u64,
    /// The length of the inode and its body without inline data, in bytes.
    pub(crate) body_len: u64,
    /// The length of the inline data in bytes. It must lie within the block in which the body ends. (Linux 6.18 treats
    /// an inline pcluster at the beginning of the second block of a page as empty.)
    pub(crate) inline_len: u64,
}

impl Need {
    fn fits(&self, offset: u64, block_size: u64) -> bool {
        let inline_start = (offset + self.body_len) % block_size;
        offset % block_size + self.inode_len <= block_size
            && (self.inline_len == 0 || inline_start > 0 && inline_start + self.inline_len <= block_size)
    }

    fn len(&self) -> u64 {
        self.body_len + self.inline_len
    }
}

/// Allocates space sequentially and fills skipped gaps with inodes that fit.
#[derive(Debug)]
pub(crate) struct Allocator {
    block_size: u64,
    end: u64,
    gaps: Vec<(u64, u64)>,
}

impl Allocator {
    /// Creates an area whose first slot stays empty, because 0 is not a valid nid.
    pub(crate) fn new(block_size: u64) -> Self {
        Self { block_size, end: INODE_SLOT_SIZE, gaps: Vec::new() }
    }

    /// The length of the area so far, in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.end
    }

    /// Allocates space; returns its offset within the area.
    pub(crate) fn allocate(&mut self, need: Need) -> u64 {
        for number in 0..self.gaps.len() {
            let (start, end) = self.gaps[number];
            if end - start < need.len() {
                continue;
            }
            let positions = (start..=end - need.len()).step_by(INODE_SLOT_SIZE as usize);
            if let Some(position) = positions.into_iter().find(|position| need.fits(*position, self.block_size)) {
                self.gaps.remove(number);
                self.keep_gap(start, position);
                self.keep_gap((position + need.len()).next_multiple_of(INODE_SLOT_SIZE), end);
                return position;
            }
        }
        let start = self.end.next_multiple_of(INODE_SLOT_SIZE);
        let positions = (start..=start + self.block_size).step_by(INODE_SLOT_SIZE as usize);
        // Inline data leaves more than one slot free in its block, so one of these positions fits.
        let position = positions.into_iter().find(|position| need.fits(*position, self.block_size)).unwrap_or(start);
        self.keep_gap(start, position);
        self.end = position + need.len();
        position
    }

    fn keep_gap(&mut self, start: u64, end: u64) {
        if end < start + INODE_SLOT_SIZE {
            return;
        }
        if self.gaps.len() == GAPS_MAX {
            self.gaps.remove(0);
        }
        self.gaps.push((start, end));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inodes_keep_within_blocks_and_apart() {
        for block_size in [512, 4096] {
            let mut allocator = Allocator::new(block_size);
            let mut taken = Vec::new();
            let mut state = 1u64;
            for _ in 0..3000 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let inode_len = if state >> 60 > 8 { 64 } else { 32 };
                let body_len = inode_len + (state >> 40) % 50 * 4;
                let inline_len = (state >> 33) % (block_size - 64);
                let need = Need { inode_len, body_len, inline_len };
                let position = allocator.allocate(need);
                assert_eq!(position % 32, 0);
                assert!(need.fits(position, block_size), "{need:?} at {position}");
                taken.push((position, position + need.len()));
            }
            taken.sort();
            assert!(taken.windows(2).all(|pair| pair[0].1 <= pair[1].0), "positions overlap");
            let used: u64 = taken.iter().map(|(start, end)| end - start).sum();
            assert!(used * 10 > allocator.len() * 8, "{used} of {} bytes are used", allocator.len());
        }
    }
}
