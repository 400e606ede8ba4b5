//! What was decoded, kept for those who want it again.

pub(crate) mod block_cache;
pub(crate) mod flight;
pub(crate) mod metadata_cache;
pub(crate) mod spill_file;
