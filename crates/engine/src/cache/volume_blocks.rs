//! The block cache as one volume uses it.

use std::sync::Arc;

use floe_image::{Result, StoredBlock};

use crate::{
    PageRun,
    cache::{
        block_cache::{BlockCache, BlockLookup},
        block_share::BlockShare,
        cached_block::CachedBlock,
        flight::Flight,
        key::{Key, SourceNumbers},
    },
    memory::page_pool::{Effort, PagePool},
};

/// The block cache as one volume uses it.
#[derive(Debug)]
pub(crate) struct VolumeBlocks {
    cache: Arc<BlockCache>,
    share: Arc<BlockShare>,
    sources: Arc<SourceNumbers>,
}

impl VolumeBlocks {
    /// The cache as a volume with these sources uses it. Its blocks count towards `share`.
    pub(crate) fn new(cache: &Arc<BlockCache>, share: &Arc<BlockShare>, sources: &Arc<SourceNumbers>) -> Self {
        Self { cache: Arc::clone(cache), share: Arc::clone(share), sources: Arc::clone(sources) }
    }

    /// The key of a block of the volume.
    pub(crate) fn key(&self, block: &StoredBlock) -> Key {
        Key::of(self.sources.id(block.device), block)
    }

    /// See [`BlockCache::has_room_for`].
    pub(crate) fn has_room_for(&self, block: &StoredBlock) -> bool {
        self.cache.has_room_for(block)
    }

    /// Whether the block is cached or being decoded. Counts neither a hit nor a miss.
    pub(crate) fn contains(&self, block: &StoredBlock) -> bool {
        self.cache.contains(&self.key(block), block.decoded_len)
    }

    /// Returns the block if it is cached.
    pub(crate) fn peek(&self, block: &StoredBlock) -> Option<Arc<CachedBlock>> {
        self.cache.peek(&self.key(block), block.decoded_len)
    }

    /// Returns the block if it is cached, for a reader that consumes all of it. The block becomes an early candidate
    /// for eviction, because such a reader has no reason to come back.
    pub(crate) fn peek_whole(&self, block: &StoredBlock) -> Option<Arc<CachedBlock>> {
        let cached = self.peek(block)?;
        cached.mark_consumed();
        Some(cached)
    }

    /// Looks up the block: cached, in flight, or the duty to decode it.
    pub(crate) fn find_or_lead(&self, block: &StoredBlock) -> BlockLookup {
        self.cache.find_or_lead(self.key(block), block.decoded_len, &self.share)
    }

    /// See [`BlockCache::join`].
    pub(crate) fn join(
        &self,
        flight: &Flight<Arc<CachedBlock>>,
        block: &StoredBlock,
    ) -> Result<Option<Arc<CachedBlock>>> {
        self.cache.join(flight, block)
    }

    /// Allocates cache pages for a block of `len` decoded bytes. See [`BlockCache::make_room`].
    pub(crate) fn make_room(&self, pool: &PagePool, len: usize, effort: Effort) -> Option<PageRun> {
        self.cache.make_room(&self.share, pool, len, effort)
    }
}
