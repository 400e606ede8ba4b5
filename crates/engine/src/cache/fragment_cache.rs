//! The fragment cache: the rules for decoded blocks that many files share.

use std::{path::Path, time::Duration};

use floe_image::{ByteRange, DecodedLen, StoredBlock};

use super::{
    cached_block::CachedBlock,
    key::Key,
    spill_file::{SpillFile, SpillFileCounters, SpilledBlock},
};

/// Fragments that decode faster are not spilled, since decoding them again costs less.
const COSTLY_DECODE: Duration = Duration::from_millis(1);

/// The rules for fragments: decoded blocks that many files share, such as the fragment blocks of SquashFS and the blocks of
/// EROFS's packed inode.
///
/// A decoded fragment is in the block cache, where the same clock evicts it as all other blocks. It differs in two ways. It is
/// no early candidate for eviction once its part of one file is in the kernel's page cache, because the other files still need
/// it. And if it is costly to decode, it is also written to the spill file, which outlives its eviction.
#[derive(Debug)]
pub(crate) struct FragmentCache {
    spill_file: SpillFile,
}

impl FragmentCache {
    /// Creates a cache that spills at most `spill_bytes` to a file in `directory`.
    pub(crate) fn new(spill_bytes: u64, directory: Option<&Path>) -> Self {
        Self { spill_file: SpillFile::new(spill_bytes, directory) }
    }

    /// Whether `block` is a fragment: most of it belongs to files other than the one whose bytes `range` it contains.
    pub(crate) fn is_fragment(range: ByteRange, block: &StoredBlock) -> bool {
        range.len() < u64::from(block.decoded_len.bytes()) / 2
    }

    /// Whether a fragment that takes this long to decode is to be kept beyond its eviction ([`FragmentCache::keep`]).
    pub(crate) fn is_kept(&self, decode_cost: Duration) -> bool {
        decode_cost >= COSTLY_DECODE
    }

    /// Returns a block that was kept beyond its eviction.
    pub(crate) fn find(&self, key: &Key, decoded_len: DecodedLen) -> Option<SpilledBlock> {
        self.spill_file.find(key, decoded_len)
    }

    /// Keeps a fragment beyond its eviction. May wait.
    pub(crate) fn keep(&self, key: Key, cached: &CachedBlock) {
        self.spill_file.store(key, cached);
    }

    /// Forgets a kept block that could not be read.
    pub(crate) fn forget(&self, key: &Key, spilled: &SpilledBlock) {
        self.spill_file.forget(key, spilled);
    }

    /// Forgets the kept blocks of a volume or content.
    pub(crate) fn forget_all_of(&self, owner: u64) {
        self.spill_file.forget_all_of(owner);
    }

    /// Notes that all of a file's bytes in a block are in the kernel's page cache.
    pub(crate) fn note_pushed(cached: &CachedBlock, is_fragment: bool) {
        if !is_fragment {
            cached.mark_consumed();
        }
    }

    /// Closes the spill file; nothing is kept or found from now on.
    pub(crate) fn close(&self) {
        self.spill_file.close();
    }

    /// Why nothing is spilled although a budget was given.
    pub(crate) fn spill_refusal(&self) -> Option<&'static str> {
        self.spill_file.refusal()
    }

    pub(crate) fn spill_counters(&self) -> SpillFileCounters {
        self.spill_file.counters()
    }
}
