//! Checkpoints in long block lists: with them, locating a block costs the same anywhere in the file (section "Data
//! blocks").

use std::sync::Arc;

use floe_image::Nid;
use floe_sync::{Mutex, MutexGuard};

use super::metadata::MetadataPosition;

/// The number of shards, each with its own lock.
const SHARD_COUNT: usize = 16;

/// The maximum number of indexed files per shard.
const FILES_PER_SHARD_MAX: usize = 8;

/// The minimum distance of checkpoints in blocks: 32 MiB of data with the usual block size. A file with fewer blocks
/// needs no index.
const STRIDE_BLOCKS_MIN: u64 = 256;

/// The maximum number of checkpoints per file, so that all indexes together take at most 3 MiB.
const CHECKPOINTS_MAX: u64 = 1024;

/// A position in a block list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Checkpoint {
    /// The position of the block's size word.
    pub(super) position: MetadataPosition,
    /// The offset of the block's data in the image.
    pub(super) data_offset: u64,
}

/// The indexes of the most recently read long files. Their number is bounded; new ones replace the oldest.
#[derive(Default)]
pub(super) struct BlockIndexes {
    shards: [Mutex<Shard>; SHARD_COUNT],
}

#[derive(Default)]
struct Shard {
    indexes: Vec<(Nid, Arc<BlockIndex>)>,
    oldest: usize,
}

/// The checkpoints of one block list: one at each multiple of the stride, up to the farthest position read so far.
///
/// A walk of the list adds the checkpoints that it passes. Reading a list holds no lock. If two walks pass the same
/// checkpoint, only the first adds it.
struct BlockIndex {
    stride: u64,
    checkpoints: Mutex<Vec<Checkpoint>>,
}

/// The index of one file.
#[derive(Clone)]
pub(super) struct SharedBlockIndex(Arc<BlockIndex>);

impl BlockIndexes {
    /// The index of file `nid`; `None` if its list of `block_count` blocks is too short to need one.
    pub(super) fn of(&self, nid: Nid, block_count: u64) -> Option<SharedBlockIndex> {
        if block_count <= STRIDE_BLOCKS_MIN {
            return None;
        }
        // The upper bits of the product depend on all bits of the nid.
        let spread = nid.0.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_shr(32);
        let shard = usize::try_from(spread).unwrap_or_default() % SHARD_COUNT;
        let mut shard = lock(self.shards.get(shard)?);
        if let Some((_, index)) = shard.indexes.iter().find(|(known, _)| *known == nid) {
            return Some(SharedBlockIndex(Arc::clone(index)));
        }
        let stride = block_count.div_ceil(CHECKPOINTS_MAX).max(STRIDE_BLOCKS_MIN);
        let index = Arc::new(BlockIndex { stride, checkpoints: Mutex::default() });
        shard.insert(nid, Arc::clone(&index));
        Some(SharedBlockIndex(index))
    }
}

impl Shard {
    fn insert(&mut self, nid: Nid, index: Arc<BlockIndex>) {
        if self.indexes.len() < FILES_PER_SHARD_MAX {
            self.indexes.push((nid, index));
        } else if let Some(oldest) = self.indexes.get_mut(self.oldest) {
            *oldest = (nid, index);
            self.oldest = self.oldest.wrapping_add(1) % FILES_PER_SHARD_MAX;
        }
    }
}

impl SharedBlockIndex {
    /// The last checkpoint at or before block `index`, with its block number.
    pub(super) fn nearest(&self, index: u64) -> Option<(u64, Checkpoint)> {
        let wanted = index.checked_div(self.0.stride)?;
        let checkpoints = lock(&self.0.checkpoints);
        let known = wanted.min(u64::try_from(checkpoints.len()).unwrap_or(wanted));
        let checkpoint = checkpoints.get(usize::try_from(known.checked_sub(1)?).ok()?)?;
        Some((known.saturating_mul(self.0.stride), *checkpoint))
    }

    /// Adds the checkpoint of block `index` if it is the next missing one.
    pub(super) fn learn(&self, index: u64, checkpoint: Checkpoint) {
        if index == 0 || !index.is_multiple_of(self.0.stride) {
            return;
        }
        let mut checkpoints = lock(&self.0.checkpoints);
        let next = u64::try_from(checkpoints.len()).ok().and_then(|known| known.checked_add(1));
        if next.is_some_and(|next| next <= CHECKPOINTS_MAX) && next == index.checked_div(self.0.stride) {
            checkpoints.push(checkpoint);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Data under these locks is consistent at every step, so poisoning is harmless.
    mutex.lock()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checkpoint(index: u64) -> Checkpoint {
        Checkpoint { position: MetadataPosition { block: index, offset: 0 }, data_offset: index * 10 }
    }

    #[test]
    fn checkpoints_are_learnt_in_order_and_found_again() {
        let indexes = BlockIndexes::default();
        assert!(indexes.of(Nid(1), 256).is_none());
        let index = indexes.of(Nid(1), 10_000).expect("a long file");
        assert_eq!(index.nearest(9_999), None);
        for block in [0, 1, 512, 255, 256, 512, 256, 768] {
            index.learn(block, checkpoint(block));
        }
        let again = indexes.of(Nid(1), 10_000).expect("the same file");
        for (block, expected) in [(0, None), (255, None), (256, Some(256)), (600, Some(512)), (9_999, Some(768))] {
            assert_eq!(again.nearest(block), expected.map(|at| (at, checkpoint(at))), "{block}");
        }
    }

    #[test]
    fn memory_is_bounded() {
        let indexes = BlockIndexes::default();
        for nid in 0..10_000 {
            indexes.of(Nid(nid), 10_000);
        }
        let files: usize = indexes.shards.iter().map(|shard| lock(shard).indexes.len()).sum();
        assert_eq!(files, SHARD_COUNT * FILES_PER_SHARD_MAX, "all shards are in use");
        let index = indexes.of(Nid(1), u64::MAX).expect("a long file");
        assert!(index.0.stride >= u64::MAX / CHECKPOINTS_MAX);
        for known in 1..5_000 {
            index.learn(index.0.stride.saturating_mul(known), checkpoint(known));
        }
        assert!(lock(&index.0.checkpoints).len() as u64 <= CHECKPOINTS_MAX);
    }
}
