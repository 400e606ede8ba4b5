//! Caches of decoded data and metadata.

pub(crate) mod block_cache;
pub(crate) mod evicted;
pub(crate) mod flight;
pub(crate) mod fragment_cache;
pub(crate) mod metadata_cache;
pub(crate) mod spill_file;
