//! Changes the options of a running engine.

use std::{fmt, sync::PoisonError};

use crate::{Engine, EngineOptions, MetadataCacheDesign, engine::stored_metadata_bytes, options::METADATA_BLOCK_BYTES};

/// Why an option was not changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TuneError {
    /// The design of the metadata cache is fixed, and so is the size of the single-lock design.
    MetadataCacheDesign,
    /// The operating system refuses memory for the block cache.
    CacheBytes,
    /// The operating system refuses memory for the reserve of pages.
    ReservedPages,
    /// The operating system refuses to start threads.
    Workers,
}

impl fmt::Display for TuneError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::MetadataCacheDesign => {
                "the design of the metadata cache is fixed, and so is the size of the single-lock design"
            }
            Self::CacheBytes => "there is not enough memory for a cache of this size",
            Self::ReservedPages => "there is not enough memory for a reserve of this size",
            Self::Workers => "the operating system refuses to start more threads",
        })
    }
}

impl std::error::Error for TuneError {}

impl Engine {
    /// Returns the current options.
    pub fn options(&self) -> EngineOptions {
        self.options.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes the options while reads continue. Cached data stays as far as the new budgets allow.
    ///
    /// # Errors
    /// An option cannot be changed; the options changed before it keep their new values.
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
        // The remaining options can always be changed.
        self.switches.set(wanted);
        self.prefetch.set(wanted);
        *options = wanted.clone();
        Ok(())
    }
}
