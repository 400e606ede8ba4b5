//! The part of the block cache that one content takes.

use std::sync::{
    Arc,
    atomic::{
        AtomicU64, AtomicUsize,
        Ordering::{Relaxed, SeqCst},
    },
};

/// The bytes that the blocks of one content take in the block cache.
#[derive(Debug)]
pub(crate) struct BlockShare {
    bytes: AtomicU64,
    /// The number of shares with blocks, over the whole cache.
    active_count: Arc<AtomicUsize>,
}

impl BlockShare {
    /// An empty share of a cache that counts its shares with blocks in `active_count`.
    pub(super) fn new(active_count: &Arc<AtomicUsize>) -> Arc<Self> {
        Arc::new(Self { bytes: AtomicU64::new(0), active_count: Arc::clone(active_count) })
    }

    /// Counts a block that enters the cache.
    pub(super) fn add(&self, bytes: u64) {
        if self.bytes.fetch_add(bytes, SeqCst) == 0 {
            self.active_count.fetch_add(1, Relaxed);
        }
    }

    /// Counts a block that leaves the cache, unless fewer than `floor_bytes` would be left. Returns whether it leaves.
    pub(super) fn remove(&self, bytes: u64, floor_bytes: u64) -> bool {
        let left = |all: u64| all.checked_sub(bytes).filter(|left| *left >= floor_bytes);
        let removed = self.bytes.fetch_update(SeqCst, SeqCst, left);
        if removed == Ok(bytes) {
            self.active_count.fetch_sub(1, Relaxed);
        }
        removed.is_ok()
    }

    /// Whether the cache has none of its blocks.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.load(SeqCst) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_keeps_its_floor_and_counts_as_active_while_it_has_blocks() {
        let active_count = Arc::default();
        let (share, other) = (BlockShare::new(&active_count), BlockShare::new(&active_count));
        share.add(30);
        share.add(10);
        other.add(1);
        assert_eq!(active_count.load(Relaxed), 2);
        assert!(!share.remove(30, 11) && share.remove(30, 10) && !share.is_empty());
        assert!(!share.remove(10, 1) && share.remove(10, 0) && share.is_empty());
        assert_eq!(active_count.load(Relaxed), 1);
    }
}
