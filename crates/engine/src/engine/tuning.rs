//! Changes the options of a running engine.

use std::{fmt, sync::Arc};

use crate::{
    Engine, EngineOptions, MetadataCacheDesign, engine::stored_metadata_bytes, memory::page_pool::CacheSize,
    options::METADATA_BLOCK_BYTES, prefetch::thresholds::BUDGET_PART,
};

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
        self.options.lock().clone()
    }

    /// Starts the growth watch if the block cache has grown beyond its budget. If no thread can be started, growth is
    /// disabled.
    pub(crate) fn watch_growth(self: &Arc<Self>) {
        if self.pool.has_grown() && !self.growth.begin(self) {
            self.blocks.set_growth(0);
        }
    }

    /// Shrinks the block cache to its budget if it has grown.
    pub(crate) fn shrink_cache(&self) {
        let options = self.options.lock();
        // If the operating system refuses the address space, the cache keeps its size.
        if self.pool.has_grown() && self.pool.set_cache_size(cache_size(&options)).is_ok() {
            self.blocks.keep_budget(&self.pool);
        }
    }

    /// Changes the options while reads continue. Cached data stays as far as the new budgets allow.
    ///
    /// # Errors
    /// An option cannot be changed; the options changed before it keep their new values.
    pub fn tune(&self, wanted: &EngineOptions) -> Result<(), TuneError> {
        let mut options = self.options.lock();
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
        if cache_size(wanted) != cache_size(&options) {
            self.pool.set_cache_size(cache_size(wanted)).map_err(|_| TuneError::CacheBytes)?;
            self.blocks.set_growth(wanted.cache_growth_bytes);
            self.blocks.keep_budget(&self.pool);
            self.prefetch_budget.set_max(prefetch_bytes(wanted));
            (options.cache_bytes, options.cache_growth_bytes) = (wanted.cache_bytes, wanted.cache_growth_bytes);
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
        *options = wanted.clone();
        Ok(())
    }
}

/// The size of the block cache by these options.
pub(crate) fn cache_size(options: &EngineOptions) -> CacheSize {
    CacheSize { bytes: options.cache_bytes, growth_bytes: options.cache_growth_bytes }
}

/// The budget of prefetched bytes that no read has used yet, by these options.
pub(crate) fn prefetch_bytes(options: &EngineOptions) -> u64 {
    options.cache_bytes / BUDGET_PART
}
