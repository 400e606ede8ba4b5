//! What an engine has done so far.

use crate::{
    BlockCacheCounters, BudgetCounters, MetadataCacheCounters, PagePoolCounters, SpillFileCounters, WindowCounters,
};

/// What an engine has done so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// The page pool.
    pub pages: PagePoolCounters,
    /// The cache of decoded blocks of file data.
    pub blocks: BlockCacheCounters,
    /// The spill file, for what it has no room for.
    pub spill_file: SpillFileCounters,
    /// The cache of stored metadata, in pieces as they stand in the image.
    pub stored_metadata: MetadataCacheCounters,
    /// The cache of decoded metadata blocks.
    pub decoded_metadata: MetadataCacheCounters,
    /// Reads from the sources for file data.
    pub fetches: u64,
    /// Bytes that they brought.
    pub fetched_bytes: u64,
    /// Blocks decoded for file data.
    pub decodes: u64,
    /// Bytes that they gave.
    pub decoded_bytes: u64,
    /// What LZ4 blocks needed beside their output.
    pub windows: WindowCounters,
    /// The memory of decoders.
    pub decoders: BudgetCounters,
    /// The memory of stored bytes and of blocks that reads decode which left the thread that took them.
    pub decoding: BudgetCounters,
    /// The memory of what those reads give. `waits` counts the reads that waited for it without a thread.
    pub admission: BudgetCounters,
    /// Questions under way whose bytes were not at hand, so that they left the thread that took them.
    pub outstanding: u64,
    /// The most of them at one time.
    pub outstanding_max: u64,
}
