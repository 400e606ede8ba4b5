//! The read engine: fetches, decodes and caches the bytes that a format maps.
//!
//! An [`Engine`] owns the sources of one image and everything that its reads share: the page pool, the cache of decoded
//! blocks and the metadata caches. A format is opened with a [`BlockReader`](floe_image::BlockReader) from
//! [`Engine::block_reader`]. A [`Reader`] combines an engine with an opened format and reads file data. The engine
//! knows neither formats nor FUSE.

mod blocking;
mod cache;
mod decode;
mod engine;
mod fetch;
mod memory;
mod metrics;
mod options;
mod prefetch;
mod read;
mod sync;
mod threads;

#[cfg(all(test, feature = "shuttle"))]
mod interleavings;

pub use blocking::Blocking;
pub use cache::{
    block_cache::BlockCacheCounters, metadata_cache::MetadataCacheCounters, spill_file::SpillFileCounters,
};
pub use decode::windows::WindowCounters;
pub use engine::{Engine, counters::Counters, tuning::TuneError};
pub use memory::{
    byte_budget::BudgetCounters,
    page_pool::PagePoolCounters,
    page_run_sys::PageRun,
    pages_sys::{PAGE_BYTES, machine_page_bytes},
};
pub use metrics::latency::{LatencySummary, Stage};
pub use options::{
    BadValue, EngineOptions, MetadataCacheDesign, PrefetchKind, PrefetchSet, Priority, ReadaheadAlloc, SyncDecompress,
    WorkerMode,
};
pub use prefetch::{counters::ReadAroundCounters, detectors::directory::ListedFile, sink::Sink};
pub use read::reader::Reader;
pub use threads::{cpu_pressure::Working, worker::WorkerStatus};
