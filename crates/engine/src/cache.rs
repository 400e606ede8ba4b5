//! Caches of decoded data and metadata.

pub(crate) mod block_cache;
pub(crate) mod block_share;
pub(crate) mod cached_block;
pub(crate) mod evicted;
pub(crate) mod flight;
pub(crate) mod fragment_cache;
pub(crate) mod key;
pub(crate) mod metadata_cache;
pub(crate) mod spill_file;
pub(crate) mod volume_blocks;
