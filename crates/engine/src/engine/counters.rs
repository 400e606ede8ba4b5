//! The counters of a volume and its engine.

use floe_image::metrics;

use crate::{
    BlockCacheCounters, BudgetCounters, MetadataCacheCounters, PagePoolCounters, SpillFileCounters, WindowCounters,
};

metrics! {
    /// The counters of a volume, and those of its engine, which all volumes share.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Counters {
        /// Requests in flight that left the session thread because their bytes were not in memory.
        pub outstanding: u64 = Gauge,
        /// The most of them at one time.
        pub outstanding_max: u64 = Gauge,
        /// Reads from the sources for file data.
        pub fetches: u64 = Counter,
        /// Bytes of those reads.
        pub fetched_bytes: u64 = Counter,
        /// Blocks decoded for file data.
        pub decodes: u64 = Counter,
        /// Decoded bytes of those blocks.
        pub decoded_bytes: u64 = Counter,
        ;
        /// The page pool.
        pub pages: PagePoolCounters,
        /// The cache of decoded blocks of file data.
        pub blocks: BlockCacheCounters,
        /// The spill file, for decoded blocks that do not fit into the cache.
        pub spill_file: SpillFileCounters,
        /// The cache of stored metadata, in pieces as they are in the image.
        pub stored_metadata: MetadataCacheCounters,
        /// The cache of decoded metadata blocks.
        pub decoded_metadata: MetadataCacheCounters,
        /// Memory that LZ4 decodes needed besides their output.
        pub windows: WindowCounters,
        /// Memory of decoders: their dictionaries and windows.
        pub decoders: BudgetCounters,
        /// Memory of stored bytes and decoded blocks of reads that left the session thread.
        pub decoding: BudgetCounters,
        /// Memory of the replies of those reads. `waits` counts reads that were queued, without a thread, until there was
        /// room.
        pub admission: BudgetCounters,
    }
}
