//! The engine of one image: its sources and everything that its reads share.

pub(crate) mod adopted_thread;
pub(crate) mod counters;
mod growth;
mod metadata_reader;
mod switches;
pub(crate) mod tuning;

use std::{
    fs::File,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

use floe_image::{
    BlockReader, Bytes, DecodeError, DecodedBlock, Decompressor, DeviceId, Error, ImageSource, Place, Result,
    StoredBlock, StoredLen, start_error,
};
use floe_sync::Mutex;

use crate::{
    Blocking, Counters, EngineOptions, LatencySummary, MetadataCacheDesign, Stage, WorkerStatus,
    cache::{
        block_cache::{BlockCache, Key},
        fragment_cache::FragmentCache,
        metadata_cache::MetadataCache,
    },
    decode::{costs::DecodeCosts, decoders::Decoders, windows::Windows},
    fetch::sources::Sources,
    memory::{admission::Admission, byte_budget::ByteBudget, page_pool::PagePool},
    metrics::{decode_marks::DecodeMarks, gauge::Gauge, latency::Latencies},
    options::METADATA_BLOCK_BYTES,
    prefetch::controller::Controller,
    threads::{real_time, workers::Workers},
};

use self::{growth::GrowthWatch, metadata_reader::MetadataReader, switches::Switches, tuning::cache_size};

/// The budget for stored metadata, in bytes. It is smaller if the budget for decoded metadata is.
const STORED_METADATA_BYTES: usize = 8 << 20;

/// The most bytes that a block decodes to in either format: EROFS limits a decoded physical cluster to 12 MiB.
pub(crate) const DECODED_BYTES_MAX: u32 = 12 << 20;

/// The engine of one image: its sources and everything that its reads share.
pub struct Engine {
    pub(crate) sources: Sources,
    pub(crate) prefetch: Arc<Controller>,
    pub(crate) pool: PagePool,
    pub(crate) blocks: Arc<BlockCache>,
    pub(crate) growth: GrowthWatch,
    pub(crate) fragments: FragmentCache,
    pub(crate) decoders: Decoders,
    /// The memory of reads that left the session thread: one half for their replies and for reads that wait to be
    /// admitted, the other half (`decode_budget`) for their stored bytes and decoded blocks.
    pub(crate) admission: Arc<Admission>,
    pub(crate) decode_budget: Arc<ByteBudget>,
    pub(crate) stored_metadata: MetadataCache<(DeviceId, u64), Bytes>,
    pub(crate) decoded_metadata: MetadataCache<Key, DecodedBlock>,
    pub(crate) workers: Workers,
    pub(crate) latencies: Arc<Latencies>,
    pub(crate) costs: DecodeCosts,
    decode_marks: DecodeMarks,
    windows: Windows,
    pub(crate) switches: Switches,
    pub(crate) options: Mutex<EngineOptions>,
    /// Requests that left the session thread because their bytes were not in memory.
    pub(crate) outstanding: Gauge,
    decodes: AtomicU64,
    decoded_bytes: AtomicU64,
}

impl Engine {
    /// Creates an engine over an image (device 0) and its extra devices.
    ///
    /// # Errors
    /// `NoMemory` if the reserve of pages cannot be allocated, `Threads` if a thread cannot be started.
    pub fn new(sources: Vec<Arc<dyn ImageSource>>, options: &EngineOptions) -> Result<Arc<Self>> {
        let latencies = Arc::new(Latencies::new());
        let pool = PagePool::new(options.reserved_pages, cache_size(options), Arc::clone(&latencies));
        let pool = pool.map_err(|_| Error::NoMemory)?;
        let workers = Workers::start(options.workers, options.priority, Arc::clone(&latencies));
        let workers = workers.map_err(|error| Error::Threads { error: Arc::new(start_error(error)) })?;
        let prefetch = Arc::new(Controller::new(options));
        Ok(Arc::new(Self {
            sources: Sources::new(sources, Arc::clone(&prefetch)),
            prefetch,
            workers,
            latencies,
            costs: DecodeCosts::new(),
            decode_marks: DecodeMarks::default(),
            windows: Windows::default(),
            switches: Switches::new(options),
            options: Mutex::new(options.clone()),
            outstanding: Gauge::default(),
            blocks: Arc::new(BlockCache::new(&pool, options.cache_growth_bytes)),
            growth: GrowthWatch::default(),
            fragments: FragmentCache::new(options.spill_file_bytes, options.spill_file_directory.as_deref()),
            pool,
            decoders: Decoders::new(options.decoder_bytes),
            admission: Arc::new(Admission::new(options.read_bytes / 2)),
            decode_budget: ByteBudget::new(options.read_bytes / 2),
            stored_metadata: MetadataCache::sharded(stored_metadata_bytes(options.metadata_cache)),
            decoded_metadata: match options.metadata_cache {
                MetadataCacheDesign::Sharded { block_count } => {
                    MetadataCache::sharded(block_count * METADATA_BLOCK_BYTES)
                }
                MetadataCacheDesign::SingleLock { entry_count } => MetadataCache::single_lock(entry_count),
            },
            decodes: AtomicU64::new(0),
            decoded_bytes: AtomicU64::new(0),
        }))
    }

    /// Adds the next extra device.
    pub fn add_device(&self, source: Arc<dyn ImageSource>) {
        self.sources.add_device(source);
    }

    /// Returns the source of a device, or a source that a format derived from others.
    ///
    /// # Errors
    /// `Corrupt` if there is no such device.
    pub fn source(&self, device: DeviceId) -> Result<Arc<dyn ImageSource>> {
        self.sources.source(device)
    }

    /// Closes the files of the image and its spill file, so that their file systems can be unmounted. Later reads find only
    /// bytes that are in the caches; all others fail. Reads in progress keep their files open until they end.
    pub fn close(&self) {
        self.sources.close();
        self.fragments.close();
    }

    /// Returns the reader with which a format is opened: metadata through the engine's caches.
    pub fn block_reader(self: &Arc<Self>, blocking: Blocking) -> Arc<dyn BlockReader> {
        Arc::new(MetadataReader { engine: Arc::clone(self), blocking })
    }

    /// Writes a line to `file` after each decode from now on: `floe_decode`, its duration in nanoseconds, its decoded
    /// bytes. Meant for the `trace_marker` of tracefs, which adds the time and the thread. Returns false if a file was
    /// set before.
    pub fn mark_decodes(&self, file: File) -> bool {
        self.decode_marks.begin(file)
    }

    /// Permits `count` session threads to block on a source at the same time, which saves each of their misses two
    /// thread switches. The other session threads continue to serve requests whose bytes are in memory. A thread calls
    /// `before_blocking` before it blocks, so that another thread listens in its place.
    pub fn permit_blocking(&self, count: usize, before_blocking: impl Fn() + Send + Sync + 'static) {
        self.workers.blocking_permits.give(count, before_blocking);
    }

    /// Looks whether CPUs are short, and returns the answer. The threads that serve requests are then scheduled accordingly
    /// before the next request.
    pub fn look_at_cpus(&self) -> bool {
        drop(self.workers.work());
        let cpus_are_short = self.workers.cpus_are_short();
        if let Some(sink) = self.prefetch.sink() {
            sink.follow_load(cpus_are_short);
        }
        cpus_are_short
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

    /// Returns the counters of the engine.
    pub fn counters(&self) -> Counters {
        let (fetches, fetched_bytes) = self.sources.fetches_and_bytes();
        Counters {
            pages: self.pool.counters(),
            blocks: self.blocks.counters(&self.pool),
            spill_file: self.fragments.spill_counters(),
            stored_metadata: self.stored_metadata.counters(),
            decoded_metadata: self.decoded_metadata.counters(),
            fetches,
            fetched_bytes,
            decodes: self.decodes.load(Relaxed),
            decoded_bytes: self.decoded_bytes.load(Relaxed),
            windows: self.windows.counters(),
            decoders: self.decoders.counters(),
            decoding: self.decode_budget.counters(),
            admission: self.admission.counters(),
            outstanding: self.outstanding.now(),
            outstanding_max: self.outstanding.max(),
        }
    }

    /// Fills `output` with bytes of a source, for file data.
    ///
    /// # Errors
    /// The source fails or ends early; `WouldBlock` if the source would have to be waited for and `blocking` forbids
    /// it.
    pub(crate) fn fetch(&self, device: DeviceId, offset: u64, output: &mut [u8], blocking: Blocking) -> Result<()> {
        let fetch = || self.sources.fetch_data(device, offset, output, blocking);
        if let Some(droppable) = self.latencies.time(Stage::Fetch, fetch)? {
            self.workers.run_around(Box::new(move || droppable.release()));
        }
        Ok(())
    }

    /// Decodes `block` from its stored bytes into `output`, without the first `skip` decoded bytes. Returns the number
    /// of bytes written.
    pub(crate) fn decode(&self, block: &StoredBlock, stored: &[u8], skip: usize, output: &mut [u8]) -> Result<usize> {
        real_time::check(self.costs.estimate(block));
        let (decoded, latency, temporary_bytes) = self.decoders.with(&block.encoding, block.decoded_len, |decoder| {
            let started = Instant::now();
            let decoded = decoder.decode(&block.encoding, block.decoded_len, stored, skip, output);
            (decoded, started.elapsed(), decoder.temporary_bytes_last())
        });
        self.latencies.record(Stage::Decode, latency);
        self.decode_marks.mark(latency, output.len());
        self.costs.learn(&block.encoding, skip.saturating_add(output.len()), latency);
        self.windows.note(&block.encoding, temporary_bytes);
        self.decodes.fetch_add(1, Relaxed);
        self.decoded_bytes.fetch_add(output.len() as u64, Relaxed);
        decoded.map_err(|error| decode_error(error, block))
    }

    /// Rejects a block that no valid image contains, before memory is allocated for it.
    pub(crate) fn check_bounds(&self, block: &StoredBlock) -> Result<()> {
        let place = Place { nid: None, device: block.device, offset: Some(block.offset) };
        if block.decoded_len.bytes() > DECODED_BYTES_MAX {
            return Err(Error::corrupt("block decodes to more than 12 MiB", place));
        }
        let stored_len = match block.stored_len {
            StoredLen::Known(len) => u64::from(len),
            StoredLen::Prefixed => 2,
        };
        let end = block.offset.checked_add(stored_len);
        if end.is_none_or(|end| end > self.sources.device_len(block.device).unwrap_or(0)) {
            return Err(Error::corrupt("block past the end of the image", place));
        }
        Ok(())
    }
}

/// The budget for stored metadata next to a cache of decoded metadata of this design, in bytes.
pub(crate) fn stored_metadata_bytes(decoded: MetadataCacheDesign) -> usize {
    match decoded {
        MetadataCacheDesign::Sharded { block_count } => STORED_METADATA_BYTES.min(block_count * METADATA_BLOCK_BYTES),
        MetadataCacheDesign::SingleLock { .. } => STORED_METADATA_BYTES,
    }
}

pub(crate) fn decode_error(error: DecodeError, block: &StoredBlock) -> Error {
    error.at(Place { nid: None, device: block.device, offset: Some(block.offset) })
}
