//! The switches of an engine.

/// The switches of an engine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EngineOptions {
    /// The budget of the cache of decoded blocks, in bytes.
    pub cache_bytes: u64,
    /// How many pages of 4 KiB the page pool holds in reserve.
    pub reserved_pages: usize,
    /// The budget of the metadata cache, in blocks of 8 KiB.
    pub metadata_cache_blocks: usize,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self { cache_bytes: 64 << 20, reserved_pages: 1024, metadata_cache_blocks: 1024 }
    }
}
