//! One image's sources and what all reads of it share.

pub(crate) mod counters;
mod metadata_reader;
mod switches;
pub(crate) mod tuning;

use std::{
    fs::File,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

use floe_image::{
    BlockReader, Bytes, DecodeError, DecodedBlock, Decompressor, DeviceId, Error, ImageSource, Place, Result,
    StoredBlock, StoredLen,
};

use crate::{
    Blocking, Counters, EngineOptions, LatencySummary, MetadataCacheDesign, PrefetchKind, Stage, WorkerStatus, Working,
    cache::{
        block_cache::{BlockCache, Key},
        metadata_cache::MetadataCache,
        spill_file::SpillFile,
    },
    decode::{costs::DecodeCosts, decoders::Decoders, windows::Windows},
    fetch::sources::Sources,
    memory::{admission::Admission, byte_budget::ByteBudget, page_pool::PagePool},
    metrics::{decode_marks::DecodeMarks, gauge::Gauge, latency::Latencies},
    options::METADATA_BLOCK_BYTES,
    threads::{real_time, workers::Workers},
};

use self::{metadata_reader::MetadataReader, switches::Switches};

/// The budget for stored metadata, in bytes; no more than that for decoded metadata.
const STORED_METADATA_BYTES: usize = 8 << 20;

/// No block of either format decodes to more: EROFS bounds a decoded physical cluster to 12 MiB.
pub(crate) const DECODED_BYTES_MAX: u32 = 12 << 20;

/// One image's sources and what all reads of it share.
pub struct Engine {
    pub(crate) sources: Sources,
    pub(crate) pool: PagePool,
    pub(crate) blocks: Arc<BlockCache>,
    pub(crate) spill_file: SpillFile,
    pub(crate) decoders: Decoders,
    /// Bytes of reads that left the thread that took them: one half for what they give, and those that wait for it; one
    /// for what is decoded for them.
    pub(crate) admission: Arc<Admission>,
    pub(crate) decoding: Arc<ByteBudget>,
    pub(crate) stored_metadata: MetadataCache<(DeviceId, u64), Bytes>,
    pub(crate) decoded_metadata: MetadataCache<Key, DecodedBlock>,
    pub(crate) workers: Workers,
    pub(crate) latencies: Arc<Latencies>,
    pub(crate) costs: DecodeCosts,
    decode_marks: DecodeMarks,
    windows: Windows,
    pub(crate) switches: Switches,
    pub(crate) options: Mutex<EngineOptions>,
    /// Questions that left the thread that took them, since their bytes were not in memory.
    pub(crate) outstanding: Gauge,
    decodes: AtomicU64,
    decoded_bytes: AtomicU64,
}

impl Engine {
    /// An engine over an image and its extra devices.
    ///
    /// # Errors
    /// There is no memory for the reserved pages, or no thread can be started.
    pub fn new(sources: Vec<Arc<dyn ImageSource>>, options: &EngineOptions) -> Result<Arc<Self>> {
        let latencies = Arc::new(Latencies::new());
        let pool = PagePool::new(options.reserved_pages, options.cache_bytes, Arc::clone(&latencies));
        let pool = pool.map_err(|_| Error::NoMemory)?;
        let workers =
            Workers::start(options.workers, options.priority, Arc::clone(&latencies)).map_err(|_| Error::NoMemory)?;
        let fetch_around_bytes = if options.read_around { options.fetch_around_bytes } else { 0 };
        Ok(Arc::new(Self {
            sources: Sources::new(sources, fetch_around_bytes),
            workers,
            latencies,
            costs: DecodeCosts::new(),
            decode_marks: DecodeMarks::default(),
            windows: Windows::default(),
            switches: Switches::new(options),
            options: Mutex::new(options.clone()),
            outstanding: Gauge::default(),
            blocks: Arc::new(BlockCache::new(&pool)),
            spill_file: SpillFile::new(options.spill_file_bytes, options.spill_file_directory.as_deref()),
            pool,
            decoders: Decoders::new(options.decoder_bytes),
            admission: Arc::new(Admission::new(options.read_bytes / 2)),
            decoding: ByteBudget::new(options.read_bytes / 2),
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

    /// The source that is this device, or one that is made of others.
    ///
    /// # Errors
    /// There is none.
    pub fn source(&self, device: DeviceId) -> Result<Arc<dyn ImageSource>> {
        self.sources.source(device)
    }

    /// What a format is opened with: its metadata, through the caches.
    pub fn block_reader(self: &Arc<Self>, blocking: Blocking) -> Arc<dyn BlockReader> {
        Arc::new(MetadataReader { engine: Arc::clone(self), blocking })
    }

    /// Schedules the calling thread, which takes requests and answers them: as those that decompress while more threads
    /// want to run than there are CPUs, and time-shared while that is not so. It has something to do until what this gives
    /// is dropped.
    pub fn adopt_this_thread(&self) -> Working<'_> {
        self.workers.adopt_this_thread()
    }

    /// Writes a line to `file` after each decode from now on: `floe_decode`, the nanoseconds that it took, the bytes that
    /// it gave. For the `trace_marker` of tracefs, which adds the time and the thread. False if that goes on already.
    pub fn mark_decodes(&self, file: File) -> bool {
        self.decode_marks.begin(file)
    }

    /// Lets `count` of the threads that take requests wait for a source at one time, where a miss is answered with fewer
    /// changes of threads; the others answer what is in memory meanwhile. Before a thread waits, it calls
    /// `before_blocking`, so that another one listens in its place.
    pub fn permit_blocking(&self, count: usize, before_blocking: impl Fn() + Send + Sync + 'static) {
        self.workers.blocking_permits.give(count, before_blocking);
    }

    /// What each thread of the engine asked for, got and did.
    pub fn worker_status(&self) -> Vec<WorkerStatus> {
        self.workers.status()
    }

    /// How long a stage took so far.
    pub fn latency(&self, stage: Stage) -> LatencySummary {
        self.latencies.summary(stage)
    }

    /// How many times a stage took no longer than each of `bounds_ns`, which rise; exact to one part in a hundred.
    pub fn latency_counts(&self, stage: Stage, bounds_ns: &[u64]) -> Vec<u64> {
        self.latencies.counts_up_to(stage, bounds_ns)
    }

    /// Forgets the latencies recorded so far.
    pub fn clear_latencies(&self) {
        self.latencies.clear();
    }

    /// Why there is no spill file, though one was asked for.
    pub fn spill_file_refusal(&self) -> Option<&'static str> {
        self.spill_file.refusal()
    }

    /// What the engine has done so far.
    pub fn counters(&self) -> Counters {
        let (fetches, fetched_bytes) = self.sources.fetches_and_bytes();
        Counters {
            pages: self.pool.counters(),
            blocks: self.blocks.counters(),
            spill_file: self.spill_file.counters(),
            stored_metadata: self.stored_metadata.counters(),
            decoded_metadata: self.decoded_metadata.counters(),
            fetches,
            fetched_bytes,
            decodes: self.decodes.load(Relaxed),
            decoded_bytes: self.decoded_bytes.load(Relaxed),
            windows: self.windows.counters(),
            decoders: self.decoders.counters(),
            decoding: self.decoding.counters(),
            admission: self.admission.counters(),
            outstanding: self.outstanding.now(),
            outstanding_max: self.outstanding.max(),
        }
    }

    /// Fills `output` with bytes of a source; for file data.
    ///
    /// # Errors
    /// The source fails or ends before; it would have to be waited for, and `blocking` does not allow that.
    pub(crate) fn fetch(&self, device: DeviceId, offset: u64, output: &mut [u8], blocking: Blocking) -> Result<()> {
        let fetch = || self.sources.fetch_data(device, offset, output, blocking);
        if let Some(spent) = self.latencies.time(Stage::Fetch, fetch)?
            && self.switches.has(PrefetchKind::DropBehind)
        {
            self.workers.run_around(Box::new(move || spent.release()));
        }
        Ok(())
    }

    /// Decodes `block` from its stored bytes into `output`, without its first `skip` bytes; gives how many bytes came.
    pub(crate) fn decode(&self, block: &StoredBlock, stored: &[u8], skip: usize, output: &mut [u8]) -> Result<usize> {
        real_time::check(self.costs.estimate(block));
        let (decoded, latency, temporary_bytes) = self.decoders.with(&block.encoding, block.decoded_len, |decoder| {
            let started = Instant::now();
            let decoded = decoder.decode(&block.encoding, block.decoded_len, stored, skip, output);
            (decoded, started.elapsed(), decoder.temporary_bytes_last())
        });
        self.latencies.record(Stage::Decode, latency);
        self.decode_marks.mark(latency, output.len());
        self.costs.learn(&block.encoding, output.len(), latency);
        self.windows.note(&block.encoding, temporary_bytes);
        self.decodes.fetch_add(1, Relaxed);
        self.decoded_bytes.fetch_add(output.len() as u64, Relaxed);
        decoded.map_err(|error| decode_error(error, block))
    }

    /// Refuses a block that no format has, before memory is asked for it.
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

/// The budget for stored metadata beside a cache of decoded metadata, in bytes.
pub(crate) fn stored_metadata_bytes(decoded: MetadataCacheDesign) -> usize {
    match decoded {
        MetadataCacheDesign::Sharded { block_count } => STORED_METADATA_BYTES.min(block_count * METADATA_BLOCK_BYTES),
        MetadataCacheDesign::SingleLock { .. } => STORED_METADATA_BYTES,
    }
}

pub(crate) fn decode_error(error: DecodeError, block: &StoredBlock) -> Error {
    match error {
        DecodeError::Corrupt(rule) => {
            Error::corrupt(rule, Place { nid: None, device: block.device, offset: Some(block.offset) })
        }
        DecodeError::NoMemory => Error::NoMemory,
        other => Error::unsupported(other.to_string()),
    }
}
