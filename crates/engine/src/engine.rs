//! The engine of a process: everything that reads of all its volumes share.

pub(crate) mod adopted_thread;
pub(crate) mod content;
pub(crate) mod counters;
mod growth;
pub(crate) mod tuning;
pub(crate) mod volume;

use std::{fs::File, sync::Arc, time::Duration};

use floe_image::{Bytes, DecodedBlock, Error, ImageSource, Result, StoredBlock, start_error};
use floe_sync::Mutex;

use crate::{
    Counters, EngineOptions, LatencySummary, MetadataCacheDesign, Stage, Volume, VolumeOptions, WorkerStatus,
    cache::{
        block_cache::BlockCache,
        fragment_cache::FragmentCache,
        key::{Key, SourceId},
        metadata_cache::MetadataCache,
    },
    decode::{costs::DecodeCosts, decoders::Decoders, windows::Windows},
    memory::{admission::Admission, byte_budget::ByteBudget, page_pool::PagePool, prefetch_budget::PrefetchBudget},
    metrics::{decode_marks::DecodeMarks, latency::Latencies},
    options::METADATA_BLOCK_BYTES,
    threads::{task_queue::Work, workers::Workers},
    turns::Flow,
};

use self::{
    content::Contents,
    growth::GrowthWatch,
    tuning::{cache_size, prefetch_bytes},
};

/// The budget for stored metadata, in bytes. It is smaller if the budget for decoded metadata is.
const STORED_METADATA_BYTES: usize = 8 << 20;

/// The engine of a process: memory, caches and threads, which the reads of all its volumes share.
///
/// An image is attached as a [`Volume`], at any time, and detached by dropping that.
pub struct Engine {
    pub(crate) pool: PagePool,
    pub(crate) blocks: Arc<BlockCache>,
    pub(crate) growth: GrowthWatch,
    pub(crate) fragments: FragmentCache,
    pub(crate) decoders: Decoders,
    /// The memory of reads that left the session thread: one half for their replies and for reads that wait to be
    /// admitted, the other half (`decode_budget`) for their stored bytes and decoded blocks.
    pub(crate) admission: Arc<Admission>,
    pub(crate) decode_budget: Arc<ByteBudget>,
    pub(crate) prefetch_budget: Arc<PrefetchBudget>,
    pub(crate) stored_metadata: MetadataCache<(SourceId, u64), Bytes>,
    pub(crate) decoded_metadata: MetadataCache<Key, DecodedBlock>,
    pub(crate) workers: Workers,
    pub(crate) latencies: Arc<Latencies>,
    pub(crate) costs: DecodeCosts,
    decode_marks: DecodeMarks,
    windows: Windows,
    pub(crate) options: Mutex<EngineOptions>,
    contents: Contents,
}

impl Engine {
    /// Creates an engine without volumes.
    ///
    /// # Errors
    /// `NoMemory` if the reserve of pages cannot be allocated, `Threads` if a thread cannot be started.
    pub fn new(options: &EngineOptions) -> Result<Arc<Self>> {
        let latencies = Arc::new(Latencies::new());
        let pool = PagePool::new(options.reserved_pages, cache_size(options), Arc::clone(&latencies));
        let pool = pool.map_err(|_| Error::NoMemory)?;
        let workers = Workers::start(options.workers, options.priority, Arc::clone(&latencies));
        let workers = workers.map_err(|error| Error::Threads { error: Arc::new(start_error(error)) })?;
        let prefetch_budget = Arc::<PrefetchBudget>::default();
        prefetch_budget.set_max(prefetch_bytes(options));
        Ok(Arc::new(Self {
            workers,
            latencies,
            costs: DecodeCosts::new(),
            decode_marks: DecodeMarks::default(),
            windows: Windows::default(),
            options: Mutex::new(options.clone()),
            blocks: Arc::new(BlockCache::new(&pool, options.cache_growth_bytes)),
            growth: GrowthWatch::default(),
            fragments: FragmentCache::new(options.spill_file_bytes, options.spill_file_directory.as_deref()),
            pool,
            decoders: Decoders::new(options.decoder_bytes),
            admission: Arc::new(Admission::new(options.read_bytes / 2)),
            decode_budget: ByteBudget::divided(options.read_bytes / 2),
            prefetch_budget,
            stored_metadata: MetadataCache::sharded(stored_metadata_bytes(options.metadata_cache)),
            decoded_metadata: match options.metadata_cache {
                MetadataCacheDesign::Sharded { block_count } => {
                    MetadataCache::sharded(block_count * METADATA_BLOCK_BYTES)
                }
                MetadataCacheDesign::SingleLock { entry_count } => MetadataCache::single_lock(entry_count),
            },
            contents: Contents::default(),
        }))
    }

    /// Attaches an image (device 0) with its extra devices as a volume.
    pub fn attach(self: &Arc<Self>, sources: Vec<Arc<dyn ImageSource>>, options: &VolumeOptions) -> Arc<Volume> {
        Arc::new(Volume::new(self, sources, options))
    }

    /// Writes a line to `file` after each decode from now on: `floe_decode`, its duration in nanoseconds, its decoded
    /// bytes. Meant for the `trace_marker` of tracefs, which adds the time and the thread. Returns false if a file was
    /// set before.
    pub fn mark_decodes(&self, file: File) -> bool {
        self.decode_marks.begin(file)
    }

    /// Looks whether CPUs are short, and returns the answer.
    pub(crate) fn look_at_cpus(&self) -> bool {
        drop(self.workers.work());
        self.workers.cpus_are_short()
    }

    /// Returns the requested and actual scheduling of each thread of the engine, and its counters.
    pub fn worker_status(&self) -> Vec<WorkerStatus> {
        self.workers.status()
    }

    /// Returns the latencies of a stage so far.
    pub fn latency(&self, stage: Stage) -> LatencySummary {
        self.latencies.summary(stage)
    }

    /// For each bound in `bounds_ns` (ascending, in nanoseconds), returns how often the stage took no longer. Latencies
    /// are exact to one percent.
    pub fn latency_counts(&self, stage: Stage, bounds_ns: &[u64]) -> Vec<u64> {
        self.latencies.counts_up_to(stage, bounds_ns)
    }

    /// Why there is no spill file although one was requested.
    pub fn spill_file_refusal(&self) -> Option<&'static str> {
        self.fragments.spill_refusal()
    }

    /// Returns the counters of the engine. Those of its volumes are zero.
    pub fn counters(&self) -> Counters {
        Counters {
            pages: self.pool.counters(),
            blocks: self.blocks.counters(&self.pool),
            spill_file: self.fragments.spill_counters(),
            stored_metadata: self.stored_metadata.counters(),
            decoded_metadata: self.decoded_metadata.counters(),
            windows: self.windows.counters(),
            decoders: self.decoders.counters(),
            decoding: self.decode_budget.counters(),
            admission: self.admission.counters(),
            ..Counters::default()
        }
    }

    /// Executes `work` of the engine itself on the thread that reads around. Drops `work` and returns `false` if that thread
    /// cannot be started now.
    pub(crate) fn run_around(&self, work: Work) -> bool {
        self.workers.run_around(Flow::ENGINE, work)
    }

    /// Notes that a block was decoded into `len` bytes from `skip` on.
    fn note_decode(&self, block: &StoredBlock, skip: usize, len: usize, latency: Duration, temporary_bytes: usize) {
        self.latencies.record(Stage::Decode, latency);
        self.decode_marks.mark(latency, len);
        self.costs.learn(&block.encoding, skip.saturating_add(len), latency);
        self.windows.note(&block.encoding, temporary_bytes);
    }

    /// Removes the metadata of a volume or content from the caches.
    fn forget_metadata(&self, owner: u64) {
        self.stored_metadata.forget_all(|(source, _)| source.owner() == owner);
        self.decoded_metadata.forget_all(|key| key.source().owner() == owner);
    }
}

/// The budget for stored metadata next to a cache of decoded metadata of this design, in bytes.
pub(crate) fn stored_metadata_bytes(decoded: MetadataCacheDesign) -> usize {
    match decoded {
        MetadataCacheDesign::Sharded { block_count } => STORED_METADATA_BYTES.min(block_count * METADATA_BLOCK_BYTES),
        MetadataCacheDesign::SingleLock { .. } => STORED_METADATA_BYTES,
    }
}
