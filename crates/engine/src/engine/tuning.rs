//! Moving the switches of an engine that runs.

use std::{fmt, sync::PoisonError};

use crate::{Engine, EngineOptions, MetadataCacheDesign, engine::stored_metadata_bytes, options::METADATA_BLOCK_BYTES};

/// Why a switch was not moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TuneError {
    /// One design of the metadata cache does not become another, and that with a single lock has entries of a fixed
    /// number.
    MetadataCacheDesign,
    /// The operating system gives no memory for the cache of decoded blocks.
    CacheBytes,
    /// The operating system gives no memory for the reserve of pages.
    ReservedPages,
    /// The operating system starts no more threads.
    Workers,
}

impl fmt::Display for TuneError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::MetadataCacheDesign => {
                "the design of the metadata cache is fixed, and the single-lock one in its size too"
            }
            Self::CacheBytes => "there is no memory for so large a cache",
            Self::ReservedPages => "there is no memory for so many pages in reserve",
            Self::Workers => "the operating system starts no more threads",
        })
    }
}

impl std::error::Error for TuneError {}

impl Engine {
    /// The switches as they are.
    pub fn options(&self) -> EngineOptions {
        self.options.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Moves the switches while reads go on. What is cached stays, as far as the budgets allow.
    ///
    /// # Errors
    /// One of them cannot be moved so; those that were moved before it stay as they are then.
    pub fn tune(&self, wanted: &EngineOptions) -> Result<(), TuneError> {
        let mut options = self.options.lock().unwrap_or_else(PoisonError::into_inner);
        if wanted.metadata_cache != options.metadata_cache {
            let (MetadataCacheDesign::Sharded { block_count }, MetadataCacheDesign::Sharded { .. }) =
                (wanted.metadata_cache, options.metadata_cache)
            else {
                return Err(TuneError::MetadataCacheDesign);
            };
            self.decoded_metadata.set_weight_max(block_count * METADATA_BLOCK_BYTES);
            self.stored_metadata.set_weight_max(stored_metadata_bytes(wanted.metadata_cache));
            options.metadata_cache = wanted.metadata_cache;
        }
        if wanted.cache_bytes != options.cache_bytes {
            self.pool.set_cache_bytes(wanted.cache_bytes).map_err(|_| TuneError::CacheBytes)?;
            self.blocks.keep_budget(&self.pool);
            options.cache_bytes = wanted.cache_bytes;
        }
        if wanted.reserved_pages != options.reserved_pages {
            self.pool.set_reserved_pages(wanted.reserved_pages).map_err(|_| TuneError::ReservedPages)?;
            options.reserved_pages = wanted.reserved_pages;
        }
        if wanted.priority != options.priority {
            self.workers.set_priority(wanted.priority);
            options.priority = wanted.priority;
        }
        if wanted.workers != options.workers {
            self.workers.set_mode(wanted.workers).map_err(|_| TuneError::Workers)?;
            options.workers = wanted.workers;
        }
        // What is left can always be moved.
        self.switches.set(wanted);
        self.prefetch.set(wanted);
        *options = wanted.clone();
        Ok(())
    }
}
