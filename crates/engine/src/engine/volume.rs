//! A volume: an image that is attached to an engine.

mod metadata_reader;
mod switches;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

use floe_image::{
    BlockReader, DecodeError, Decompressor, DeviceId, Error, ImageSource, Place, Result, StoredBlock, StoredLen,
};
use floe_sync::Mutex;

use crate::{
    Blocking, Counters, Engine, EngineOptions, Stage, VolumeOptions,
    cache::{
        key::{SourceId, SourceNumbers},
        volume_blocks::VolumeBlocks,
    },
    engine::content::{Content, Contents},
    fetch::sources::Sources,
    metrics::gauge::Gauge,
    prefetch::controller::Controller,
    threads::{
        permits::{BlockingPermits, VolumePermits},
        real_time,
        task_queue::Work,
    },
};

use self::{metadata_reader::MetadataReader, switches::Switches};

/// The most bytes that a block decodes to in either format: EROFS limits a decoded physical cluster to 12 MiB.
const DECODED_BYTES_MAX: u32 = 12 << 20;

/// A volume: an image that is attached to an engine. It has the sources of the image, the state of its prefetch, its counters,
/// and options of its own, but no thread and no reserved memory.
///
/// Volumes of equal content share what the engine caches: two volumes are of equal content if their sources have equal
/// identities ([`ImageSource::identity`]). Volumes of other content share the engine's memory and threads fairly: none evicts
/// the cached blocks of another below a floor, they are served in turn, and a source that does not answer delays only the
/// reads of its own content.
///
/// Dropping the volume detaches it.
pub struct Volume {
    pub(crate) engine: Arc<Engine>,
    pub(crate) content: Arc<Content>,
    pub(crate) sources: Sources,
    pub(crate) numbers: Arc<SourceNumbers>,
    pub(crate) blocks: VolumeBlocks,
    pub(crate) prefetch: Arc<Controller>,
    pub(crate) switches: Switches,
    options: Mutex<VolumeOptions>,
    /// Whether the engine was created for this volume.
    owns_engine: bool,
    /// Permits for the session threads that serve the volume.
    blocking_permits: VolumePermits,
    /// Requests that left the session thread because their bytes were not in memory.
    pub(crate) outstanding: Gauge,
    decodes: AtomicU64,
    decoded_bytes: AtomicU64,
}

impl Volume {
    /// Creates an engine, and attaches an image (device 0) with its extra devices as its only volume.
    ///
    /// # Errors
    /// As [`Engine::new`].
    pub fn alone(
        sources: Vec<Arc<dyn ImageSource>>,
        engine_options: &EngineOptions,
        options: &VolumeOptions,
    ) -> Result<Arc<Self>> {
        let mut volume = Self::new(&Engine::new(engine_options)?, sources, options);
        volume.owns_engine = true;
        Ok(Arc::new(volume))
    }

    pub(super) fn new(engine: &Arc<Engine>, sources: Vec<Arc<dyn ImageSource>>, options: &VolumeOptions) -> Self {
        let identity = sources.iter().map(|source| source.identity()).collect();
        let content = Contents::find_or_add(engine, identity);
        let numbers = Arc::new(SourceNumbers::new(content.number(), engine.contents.next_number()));
        let prefetch = Arc::new(Controller::new(options, Arc::clone(&engine.prefetch_budget)));
        Self {
            engine: Arc::clone(engine),
            blocks: VolumeBlocks::new(&engine.blocks, &content.blocks, &numbers),
            content,
            sources: Sources::new(sources, Arc::clone(&prefetch)),
            numbers,
            prefetch,
            switches: Switches::new(options),
            options: Mutex::new(options.clone()),
            owns_engine: false,
            blocking_permits: VolumePermits::default(),
            outstanding: Gauge::default(),
            decodes: AtomicU64::new(0),
            decoded_bytes: AtomicU64::new(0),
        }
    }

    /// The engine to which the volume is attached.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Returns the source of a device, or a source that a format derived from others.
    ///
    /// # Errors
    /// `Corrupt` if there is no such device.
    pub fn source(&self, device: DeviceId) -> Result<Arc<dyn ImageSource>> {
        self.sources.source(device)
    }

    /// Closes the files of the image, so that their file systems can be unmounted, and removes its bytes from the caches if
    /// no other volume has the same content. Later reads of stored bytes fail. Reads in progress keep their files open until
    /// they end. If the engine has no other volume ([`Volume::alone`]), its spill file is closed, too.
    pub fn close(&self) {
        self.content.close();
        self.sources.close();
        if Arc::strong_count(&self.content) == 1 {
            self.content.leave_caches();
        }
        if self.owns_engine {
            self.engine.fragments.close();
        }
    }

    /// Returns the reader with which a format is opened: metadata through the engine's caches.
    pub fn block_reader(self: &Arc<Self>, blocking: Blocking) -> Arc<dyn BlockReader> {
        Arc::new(MetadataReader { volume: Arc::clone(self), blocking })
    }

    /// Returns the current options.
    pub fn options(&self) -> VolumeOptions {
        self.options.lock().clone()
    }

    /// Changes the options while reads continue.
    pub fn tune(&self, wanted: &VolumeOptions) {
        let mut options = self.options.lock();
        self.switches.set(wanted);
        self.prefetch.set(wanted);
        options.clone_from(wanted);
    }

    /// Lets session threads that serve this volume block on its sources, as far as the `permits` go that they have for all of
    /// their volumes, and at most `count_max` of them at the same time. Only the first call counts.
    pub fn permit_blocking(&self, permits: &Arc<BlockingPermits>, count_max: usize) {
        self.blocking_permits.share(permits, count_max);
    }

    /// Looks whether CPUs are short, and returns the answer. The threads that serve requests are then scheduled accordingly
    /// before the next request.
    pub fn look_at_cpus(&self) -> bool {
        let cpus_are_short = self.engine.look_at_cpus();
        if let Some(sink) = self.prefetch.sink() {
            sink.follow_load(cpus_are_short);
        }
        cpus_are_short
    }

    /// Returns the counters of the volume, and those of its engine.
    pub fn counters(&self) -> Counters {
        self.counters_with(self.engine.counters())
    }

    /// Returns the counters of the volume. Those of its engine, which reads of other volumes change too, are zero.
    pub fn own_counters(&self) -> Counters {
        self.counters_with(Counters::default())
    }

    fn counters_with(&self, engine: Counters) -> Counters {
        let (fetches, fetched_bytes) = self.sources.fetches_and_bytes();
        Counters {
            fetches,
            fetched_bytes,
            decodes: self.decodes.load(Relaxed),
            decoded_bytes: self.decoded_bytes.load(Relaxed),
            outstanding: self.outstanding.now(),
            outstanding_max: self.outstanding.max(),
            ..engine
        }
    }

    /// The identity of a source in the caches.
    pub(crate) fn source_id(&self, device: DeviceId) -> SourceId {
        self.numbers.id(device)
    }

    /// Adds a source that the format derived from other ones.
    ///
    /// # Errors
    /// `Unsupported` if there are too many.
    pub(crate) fn add_derived(&self, source: Arc<dyn ImageSource>) -> Result<DeviceId> {
        let device = self.sources.add_derived(source)?;
        self.numbers.note_derived(device);
        Ok(device)
    }

    /// Fills `output` with bytes of a source, for file data.
    ///
    /// # Errors
    /// The source fails or ends early; `WouldBlock` if the source would have to be waited for and `blocking` forbids
    /// it.
    pub(crate) fn fetch(&self, device: DeviceId, offset: u64, output: &mut [u8], blocking: Blocking) -> Result<()> {
        let fetch = || self.sources.fetch_data(device, offset, output, blocking);
        if let Some(droppable) = self.engine.latencies.time(Stage::Fetch, fetch)? {
            self.run_around(Box::new(move || droppable.release()));
        }
        Ok(())
    }

    /// Decodes `block` from its stored bytes into `output`, without the first `skip` decoded bytes. Returns the number
    /// of bytes written.
    pub(crate) fn decode(&self, block: &StoredBlock, stored: &[u8], skip: usize, output: &mut [u8]) -> Result<usize> {
        let engine = &self.engine;
        real_time::check(engine.costs.estimate(block));
        let (decoded, latency, temporary_bytes) = engine.decoders.with(&block.encoding, block.decoded_len, |decoder| {
            let started = Instant::now();
            let decoded = decoder.decode(&block.encoding, block.decoded_len, stored, skip, output);
            (decoded, started.elapsed(), decoder.temporary_bytes_last())
        });
        engine.note_decode(block, skip, output.len(), latency, temporary_bytes);
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

    /// Executes `work` on a decompression thread.
    pub(crate) fn decompress(&self, work: Work) {
        self.engine.workers.decompress(self.content.flow(), work);
    }

    /// Executes `work` on a thread that may wait.
    pub(crate) fn fetch_later(&self, work: Work) {
        self.engine.workers.fetch(self.content.flow(), work);
    }

    /// Executes `work` on a thread that may wait: on the calling session thread if a permit is free, else on a fetch
    /// thread.
    pub(crate) fn fetch_here_if_free(&self, work: Work) {
        match self.blocking_permits.take() {
            Some(_permit) => work(),
            None => self.fetch_later(work),
        }
    }

    /// Executes `work` on the thread that reads around. Drops `work` and returns `false` if that thread cannot be started now.
    pub(crate) fn run_around(&self, work: Work) -> bool {
        self.engine.workers.run_around(self.content.flow(), work)
    }

    /// Executes `work`, which may wait, on the thread that pushes decoded bytes into the page cache. Drops `work` and
    /// returns `false` if that thread cannot be started now.
    pub(crate) fn run_store(&self, work: Work) -> bool {
        self.engine.workers.run_store(self.content.flow(), work)
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        if self.numbers.has_derived() {
            self.engine.blocks.forget(self.numbers.volume());
            self.engine.forget_metadata(self.numbers.volume());
        }
    }
}

pub(crate) fn decode_error(error: DecodeError, block: &StoredBlock) -> Error {
    error.at(Place { nid: None, device: block.device, offset: Some(block.offset) })
}
