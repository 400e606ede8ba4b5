//! The read engine: it fetches, decodes and caches what formats map.
//!
//! An [`Engine`] owns the sources of one image and everything that is shared between reads: the page pool, the cache
//! of decoded blocks and the metadata cache. It is the [`BlockReader`](floe_image::BlockReader) that a format is opened
//! with. A [`Reader`] joins it with the format and reads file data. The engine knows no format and no FUSE.

mod admission;
mod arenas;
mod batch;
mod block_cache;
mod byte_budget;
mod counters;
mod cpu_pressure;
mod decode_costs;
mod decode_marks;
mod decoders;
mod engine;
mod fetch_around;
mod flight;
mod free_pages;
mod gauge;
mod held_blocks;
mod hot_regions;
mod latency;
mod memory_pressure;
mod metadata_cache;
mod options;
mod overflow;
mod page_pool;
mod page_run_sys;
mod pages_sys;
mod patience;
mod read_around;
mod read_job_sys;
mod read_plan;
mod reader;
mod scheduling_sys;
mod shared_pages_sys;
mod spent;
mod streams;
mod switches;
mod sync;
mod task_queue;
mod tuning;
mod walks;
mod windows;
mod worker;
mod workers;
mod workspace;

#[cfg(all(test, feature = "shuttle"))]
mod interleavings;

pub use block_cache::BlockCacheCounters;
pub use byte_budget::BudgetCounters;
pub use counters::Counters;
pub use cpu_pressure::Working;
pub use engine::Engine;
pub use latency::{LatencySummary, Stage};
pub use metadata_cache::MetadataCacheCounters;
pub use options::{BadValue, EngineOptions, MetadataCacheDesign, Priority, ReadaheadAlloc, SyncDecompress, WorkerMode};
pub use overflow::OverflowCounters;
pub use page_pool::PagePoolCounters;
pub use page_run_sys::PageRun;
pub use pages_sys::{PAGE_BYTES, machine_page_bytes};
pub use read_around::{PageCache, ReadAroundCounters};
pub use reader::Reader;
pub use tuning::TuneError;
pub use walks::ListedFile;
pub use windows::WindowCounters;
pub use worker::WorkerStatus;
