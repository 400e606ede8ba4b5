//! One image's sources and what all reads of it share.

use std::{
    fs::File,
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

use floe_image::{
    BlockReader, ByteRange, Bytes, DecodeError, DecodedBlock, Decompressor, DeviceId, Encoding, Error, ImageSource,
    Place, Result, StoredBlock, StoredLen,
};

use crate::{
    Counters, EngineOptions, LatencySummary, MetadataCacheDesign, Stage, WorkerStatus, Working,
    admission::Admission,
    block_cache::{BlockCache, Key},
    byte_budget::ByteBudget,
    decode_costs::DecodeCosts,
    decode_marks::DecodeMarks,
    decoders::Decoders,
    fetch_around::FetchAround,
    gauge::Gauge,
    latency::Latencies,
    metadata_cache::{MetadataCache, Weight},
    overflow::Overflow,
    page_pool::PagePool,
    patience,
    spent::Spent,
    switches::Switches,
    windows::Windows,
    workers::Workers,
    workspace::Workspaces,
};

/// Stored metadata is cached in pieces of this many bytes, aligned to it.
const PIECE_BYTES: u64 = 16 << 10;

/// The budget for stored metadata, in bytes; no more than that for decoded metadata.
const STORED_METADATA_BYTES: usize = 8 << 20;

/// The unit in which the budget for decoded metadata is given, in bytes.
pub(crate) const METADATA_BLOCK_BYTES: usize = 8 << 10;

/// No block of either format decodes to more: EROFS bounds a decoded physical cluster to 12 MiB.
pub(crate) const DECODED_BYTES_MAX: u32 = 12 << 20;

/// One image's sources and what all reads of it share.
pub struct Engine {
    sources: RwLock<Vec<Arc<dyn ImageSource>>>,
    /// Sources that are made of the other ones, numbered from the last number down.
    derived: RwLock<Vec<Arc<dyn ImageSource>>>,
    pub(crate) pool: PagePool,
    pub(crate) blocks: Arc<BlockCache>,
    pub(crate) overflow: Overflow,
    pub(crate) workspaces: Workspaces,
    decoders: Decoders,
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
    spent: Spent,
    windows: Windows,
    pub(crate) switches: Switches,
    pub(crate) options: Mutex<EngineOptions>,
    /// Questions that left the thread that took them, since their bytes were not at hand.
    pub(crate) outstanding: Gauge,
    pub(crate) around_data: FetchAround,
    pub(crate) around_metadata: FetchAround,
    fetches: AtomicU64,
    fetched_bytes: AtomicU64,
    decodes: AtomicU64,
    decoded_bytes: AtomicU64,
}

impl Weight for Bytes {
    fn weight(&self) -> usize {
        self.len()
    }

    fn deep_copy(&self) -> Self {
        Self::copy_from_slice(self)
    }
}

impl Weight for DecodedBlock {
    fn weight(&self) -> usize {
        self.bytes.len()
    }

    fn deep_copy(&self) -> Self {
        Self { bytes: self.bytes.deep_copy(), ..*self }
    }
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
            sources: RwLock::new(sources),
            derived: RwLock::default(),
            workers,
            latencies,
            costs: DecodeCosts::new(),
            decode_marks: DecodeMarks::default(),
            spent: Spent::new(),
            windows: Windows::default(),
            around_data: FetchAround::new(fetch_around_bytes),
            around_metadata: FetchAround::new(fetch_around_bytes),
            switches: Switches::new(options),
            options: Mutex::new(options.clone()),
            outstanding: Gauge::default(),
            blocks: Arc::new(BlockCache::new(&pool)),
            overflow: Overflow::new(options.overflow_bytes, options.overflow_directory.as_deref()),
            pool,
            workspaces: Workspaces::default(),
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
            fetches: AtomicU64::new(0),
            fetched_bytes: AtomicU64::new(0),
            decodes: AtomicU64::new(0),
            decoded_bytes: AtomicU64::new(0),
        }))
    }

    /// Adds the next extra device.
    pub fn add_device(&self, source: Arc<dyn ImageSource>) {
        self.sources.write().unwrap_or_else(PoisonError::into_inner).push(source);
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

    /// Lets `count` more (or fewer, if it is negative) of the threads that take requests wait for a source at one time,
    /// where a miss is answered with fewer changes of threads. Those that are not lent answer what is in memory, whatever
    /// the others wait for.
    pub fn lend_threads(&self, count: isize) {
        self.workers.lent.add(count);
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

    /// Why no blocks overflow into a file, though that was asked for.
    pub fn overflow_refusal(&self) -> Option<&'static str> {
        self.overflow.refusal()
    }

    /// What the engine has done so far.
    pub fn counters(&self) -> Counters {
        Counters {
            pages: self.pool.counters(),
            blocks: self.blocks.counters(),
            overflow: self.overflow.counters(),
            stored_metadata: self.stored_metadata.counters(),
            decoded_metadata: self.decoded_metadata.counters(),
            fetches: self.fetches.load(Relaxed),
            fetched_bytes: self.fetched_bytes.load(Relaxed),
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

    /// Whether reads of file data stand near each other of late, so that what is beside them will be wanted.
    pub(crate) fn reads_are_dense(&self) -> bool {
        self.around_data.is_worthwhile()
    }

    /// Fills `output` with bytes of a source; for file data.
    pub(crate) fn fetch(&self, device: DeviceId, offset: u64, output: &mut [u8]) -> Result<()> {
        let source = self.source(device)?;
        self.latencies.time(Stage::Fetch, || self.fill(&self.around_data, source.as_ref(), device, offset, output))?;
        self.fetches.fetch_add(1, Relaxed);
        self.fetched_bytes.fetch_add(output.len() as u64, Relaxed);
        let fetched = ByteRange::new(offset, output.len() as u64);
        if let Some((device, spent)) = self.spent.note(device, fetched) {
            let source = self.source(device)?;
            self.workers.run_around(Box::new(move || source.done_with(spent.offset(), spent.len())));
        }
        Ok(())
    }

    /// Decodes `block` from its stored bytes into `output`, without its first `skip` bytes; gives how many bytes came.
    pub(crate) fn decode(&self, block: &StoredBlock, stored: &[u8], skip: usize, output: &mut [u8]) -> Result<usize> {
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

    /// Says that bytes of a source will be read soon.
    pub(crate) fn will_need(&self, device: DeviceId, offset: u64, len: u64) {
        if let Ok(source) = self.source(device) {
            source.will_need(offset, len);
        }
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
        if end.is_none_or(|end| end > self.device_len(block.device).unwrap_or(0)) {
            return Err(Error::corrupt("block past the end of the image", place));
        }
        Ok(())
    }

    /// Fills `output` from a source; waits for the bytes, and for what stands around them, if this thread may.
    fn fill(
        &self,
        around: &FetchAround,
        source: &dyn ImageSource,
        device: DeviceId,
        offset: u64,
        output: &mut [u8],
    ) -> Result<()> {
        let wanted = ByteRange::new(offset, output.len() as u64);
        let read = if patience::may_wait() {
            if let Some(window) = around.note_miss(device, wanted) {
                source.will_need(window.offset(), window.len());
            }
            source.read_at(offset, output).map(|()| true)
        } else {
            source.read_at_hand(offset, output).inspect(|is_read| {
                if *is_read {
                    around.note_hit(device, wanted);
                }
            })
        };
        match read {
            Ok(true) => Ok(()),
            Ok(false) => Err(Error::NotAtHand),
            Err(error) => Err(Error::io(device, offset, error)),
        }
    }

    fn source(&self, device: DeviceId) -> Result<Arc<dyn ImageSource>> {
        let sources = self.sources.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(source) = sources.get(usize::from(device.0)) {
            return Ok(Arc::clone(source));
        }
        let derived = self.derived.read().unwrap_or_else(PoisonError::into_inner);
        let source = derived.get(usize::from(u16::MAX - device.0)).map(Arc::clone);
        source.ok_or(Error::corrupt("no such device", Place { device, ..Place::UNKNOWN }))
    }

    /// The cached piece that begins at `offset`, which is a multiple of its size.
    fn piece(&self, device: DeviceId, offset: u64) -> Result<Bytes> {
        self.stored_metadata.find_or_make((device, offset), || {
            let source = self.source(device)?;
            let len = source.len().saturating_sub(offset).min(PIECE_BYTES);
            let mut bytes = vec![0; len as usize];
            self.fill(&self.around_metadata, source.as_ref(), device, offset, &mut bytes)?;
            Ok(bytes.into())
        })
    }

    fn decode_metadata(&self, block: &StoredBlock) -> Result<DecodedBlock> {
        self.check_bounds(block)?;
        let StoredBlock { device, offset, decoded_len, mut encoding, .. } = *block;
        let decoded_len_max = decoded_len.bytes() as usize;
        let mut stored = Vec::new();
        let stored_start;
        match block.stored_len {
            StoredLen::Known(len) => {
                stored_start = 0;
                stored.resize(len as usize, 0);
                self.fill(&self.around_metadata, self.source(device)?.as_ref(), device, offset, &mut stored)?;
            }
            StoredLen::Prefixed => {
                // One read brings the length and, since data never grows, all that can follow it.
                stored_start = 2;
                let room = self.device_len(device)?.saturating_sub(offset);
                stored.resize(room.min(2 + decoded_len_max as u64) as usize, 0);
                self.fill(&self.around_metadata, self.source(device)?.as_ref(), device, offset, &mut stored)?;
                let place = Place { nid: None, device, offset: Some(offset) };
                let word = stored.first_chunk::<2>().map_or(0, |word| u16::from_le_bytes(*word));
                let len = usize::from(word & 0x7fff);
                if len == 0 || len > decoded_len_max {
                    return Err(Error::corrupt("length of a metadata block", place));
                }
                if stored.len() < 2 + len {
                    return Err(Error::corrupt("metadata block past the end of the image", place));
                }
                stored.truncate(2 + len);
                if word & 0x8000 != 0 {
                    encoding = Encoding::Stored;
                }
            }
        }
        let stored_end = offset + stored.len() as u64;
        let mut bytes = vec![0; decoded_len_max];
        let decoded = self.decoders.with(&encoding, decoded_len, |decoder| {
            let decoded = decoder.decode(&encoding, decoded_len, &stored[stored_start..], 0, &mut bytes);
            decoded.map_err(|error| decode_error(error, block))
        })?;
        bytes.truncate(decoded);
        Ok(DecodedBlock { bytes: bytes.into(), stored_end })
    }
}

impl BlockReader for Engine {
    fn device_count(&self) -> u16 {
        self.sources.read().unwrap_or_else(PoisonError::into_inner).len() as u16
    }

    fn device_len(&self, device: DeviceId) -> Result<u64> {
        self.source(device).map(|source| source.len())
    }

    fn stored(&self, device: DeviceId, offset: u64, len: usize) -> Result<Bytes> {
        let place = Place { nid: None, device, offset: Some(offset) };
        let end = offset.checked_add(len as u64).filter(|_| len <= <dyn BlockReader>::STORED_LEN_MAX);
        let end = end.ok_or(Error::corrupt("metadata longer than 1 MiB", place))?;
        if end > self.device_len(device)? {
            return Err(Error::corrupt("metadata past the end of the image", place));
        }
        let first = offset - offset % PIECE_BYTES;
        let within = (offset - first) as usize;
        let too_short = || Error::corrupt("metadata past the end of the image", place);
        if within + len <= PIECE_BYTES as usize {
            let piece = self.piece(device, first)?;
            return if piece.len() >= within + len { Ok(piece.slice(within..within + len)) } else { Err(too_short()) };
        }
        let mut bytes = Vec::with_capacity(len);
        let mut position = offset;
        while position < end {
            let start = position - position % PIECE_BYTES;
            let piece = self.piece(device, start)?;
            let stop = end.min(start + PIECE_BYTES);
            let part = piece.get((position - start) as usize..(stop - start) as usize);
            bytes.extend_from_slice(part.ok_or_else(too_short)?);
            position = stop;
        }
        Ok(bytes.into())
    }

    fn decoded(&self, block: &StoredBlock) -> Result<DecodedBlock> {
        let found = self.decoded_metadata.find_or_make(Key::of(block), || self.decode_metadata(block))?;
        let len = block.decoded_len.bytes() as usize;
        // Two users may know different lengths of one block.
        if found.bytes.len() >= len || matches!(block.decoded_len, floe_image::DecodedLen::AtMost(_)) {
            return Ok(DecodedBlock { bytes: found.bytes.slice(..found.bytes.len().min(len)), ..found });
        }
        self.decode_metadata(block)
    }

    fn add_derived(&self, source: Arc<dyn ImageSource>) -> Result<DeviceId> {
        let mut derived = self.derived.write().unwrap_or_else(PoisonError::into_inner);
        let number = u16::try_from(derived.len()).ok().and_then(|index| u16::MAX.checked_sub(index));
        let number = number.filter(|number| usize::from(*number) >= usize::from(self.device_count()));
        let number = number.ok_or(Error::unsupported("so many sources that are made of other ones"))?;
        derived.push(source);
        Ok(DeviceId(number))
    }
}

/// The budget for stored metadata beside a cache of decoded metadata, in bytes.
pub(crate) fn stored_metadata_bytes(decoded: MetadataCacheDesign) -> usize {
    match decoded {
        MetadataCacheDesign::Sharded { block_count } => STORED_METADATA_BYTES.min(block_count * METADATA_BLOCK_BYTES),
        MetadataCacheDesign::SingleLock { .. } => STORED_METADATA_BYTES,
    }
}

fn decode_error(error: DecodeError, block: &StoredBlock) -> Error {
    match error {
        DecodeError::Corrupt(rule) => {
            Error::corrupt(rule, Place { nid: None, device: block.device, offset: Some(block.offset) })
        }
        DecodeError::NoMemory => Error::NoMemory,
        other => Error::unsupported(other.to_string()),
    }
}
