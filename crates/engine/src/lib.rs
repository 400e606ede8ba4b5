//! The read engine: fetches, decodes and caches the stored bytes of images.
//!
//! An [`Engine`] owns everything that the reads of a process share: the page pool, the cache of decoded blocks, the metadata
//! caches and the threads. An image is attached to it as a [`Volume`], which has the sources of the image, the state of its
//! prefetch and its counters. [`Volume::block_reader`] returns the [`BlockReader`](floe_image::BlockReader) with which a
//! format is opened; through it, the format reads its metadata. A [`Reader`] combines a volume and a format: the format maps a
//! range of a file to extents, and the engine reads them. The engine knows neither formats nor FUSE.
//!
//! ARCHITECTURE.md follows a read through the modules of this crate; `xtask/rooms.toml` lists what each module may import.

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
mod turns;

#[cfg(all(test, feature = "shuttle"))]
mod interleavings;

pub use blocking::Blocking;
pub use cache::{
    block_cache::BlockCacheCounters, metadata_cache::MetadataCacheCounters, spill_file::SpillFileCounters,
};
pub use decode::windows::WindowCounters;
pub use engine::{Engine, adopted_thread::AdoptedThread, counters::Counters, tuning::TuneError, volume::Volume};
pub use memory::{
    byte_budget::BudgetCounters,
    page_pool::PagePoolCounters,
    page_run_sys::PageRun,
    pages_sys::{PAGE_BYTES, machine_page_bytes},
};
pub use metrics::{
    latency::{LatencySummary, Stage},
    moving_share::MovingShare,
};
pub use options::{
    BadValue, EngineOptions, MetadataCacheDesign, PrefetchKind, PrefetchSet, Priority, ReadaheadAlloc, SyncDecompress,
    VolumeOptions, WorkerMode,
};
pub use prefetch::{counters::ReadAroundCounters, detectors::directory::ListedFile, sink::Sink};
pub use read::reader::Reader;
pub use threads::{
    cpu_pressure::Working,
    permits::BlockingPermits,
    scheduling_sys::{reschedule_this_thread, schedule_started_thread, schedule_this_thread},
    worker_record::WorkerStatus,
};
