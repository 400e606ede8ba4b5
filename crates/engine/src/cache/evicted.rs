//! Recently evicted blocks.

use std::collections::{HashMap, VecDeque};

/// The maximum number of blocks that are remembered.
const BLOCKS_MAX: usize = 1 << 16;

/// Recently evicted blocks, by their hashes: as many as a cache of the maximum size would have kept.
///
/// A miss of one of them would have been a hit in a larger cache.
#[derive(Debug, Default)]
pub(crate) struct Evicted {
    /// In the order of their eviction, each with the number of that eviction.
    order: VecDeque<(u64, u64)>,
    /// For each hash, the number of its last eviction and the size of the block in bytes.
    blocks: HashMap<u64, (u64, u64)>,
    bytes: u64,
    bytes_max: u64,
    last: u64,
}

impl Evicted {
    /// Remembers blocks of at most `bytes_max` bytes in total from now on.
    pub(crate) fn set_bytes_max(&mut self, bytes_max: u64) {
        self.bytes_max = bytes_max;
        self.forget();
    }

    /// Notes that the block with this hash was evicted.
    pub(crate) fn note(&mut self, hash: u64, bytes: u64) {
        self.last += 1;
        self.take(hash);
        self.blocks.insert(hash, (self.last, bytes));
        self.order.push_back((hash, self.last));
        self.bytes += bytes;
        self.forget();
    }

    /// Forgets the block with this hash, and returns whether it was remembered.
    pub(crate) fn take(&mut self, hash: u64) -> bool {
        let taken = self.blocks.remove(&hash);
        self.bytes -= taken.map_or(0, |(_, bytes)| bytes);
        taken.is_some()
    }

    fn forget(&mut self) {
        while self.bytes > self.bytes_max || self.order.len() > BLOCKS_MAX {
            let Some((hash, number)) = self.order.pop_front() else { break };
            // If the block was evicted again later, it is remembered for the later eviction.
            if self.blocks.get(&hash).is_some_and(|(last, _)| *last == number) {
                self.take(hash);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_that_a_grown_cache_would_have_kept_are_remembered() {
        let mut evicted = Evicted::default();
        evicted.note(1, 10);
        assert!(!evicted.take(1), "nothing is remembered while the cache may not grow");
        evicted.set_bytes_max(30);
        for hash in [1, 2, 3, 1] {
            evicted.note(hash, 10);
        }
        evicted.note(4, 10);
        assert_eq!([1, 2, 3, 4].map(|hash| evicted.take(hash)), [true, false, true, true]);
        assert!(!evicted.take(1) && evicted.bytes == 0);
    }

    #[test]
    fn the_number_of_blocks_has_a_limit() {
        let mut evicted = Evicted::default();
        evicted.set_bytes_max(u64::MAX);
        (0..2 * BLOCKS_MAX as u64).for_each(|hash| evicted.note(hash, 1));
        assert_eq!((evicted.order.len(), evicted.blocks.len()), (BLOCKS_MAX, BLOCKS_MAX));
        for _ in 0..4 * BLOCKS_MAX {
            evicted.note(7, 1);
        }
        assert!(evicted.order.len() <= BLOCKS_MAX && evicted.blocks.len() == 1 && evicted.bytes == 1);
    }
}
