//! The controller: decides which bytes are prefetched, and how many.

use std::{
    collections::VecDeque,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use floe_image::{ByteRange, DeviceId, Nid};
use floe_sync::Mutex;

use crate::{
    PrefetchKind, PrefetchSet, ReadAroundCounters, VolumeOptions,
    memory::prefetch_budget::{Feedback, PrefetchBudget, Unused},
    metrics::{
        gauge::{Counted, Gauge},
        moving_share::MovingShare,
    },
    prefetch::{
        counters::Counts,
        detectors::{
            density::{Density, Window},
            directory::{AheadFile, DirectoryReadahead, ListedFile},
            drop_behind::DropBehind,
            sequential::{Ahead, SequentialReadahead},
        },
        miss_cost::MissCost,
        sink::Sink,
        thresholds::*,
    },
};

/// The prefetch decisions for one volume, based on the reports of the detectors.
///
/// `read/read_around` executes them: mostly on the thread `floe-around`, with best-effort pages. Work may be dropped.
pub(crate) struct Controller {
    kinds: AtomicU8,
    /// Whether more bytes may be read than were requested.
    reads_more: AtomicBool,
    fault_around_bytes: AtomicU64,
    sink: OnceLock<Box<dyn Sink>>,
    sequential: Mutex<SequentialReadahead>,
    walks: Mutex<KnownWalks>,
    data: Density,
    metadata: Density,
    clusters: Density,
    /// Small reads by file.
    files: Density,
    decoded: DropBehind,
    miss_cost: MissCost,
    /// The engine's budget of all prefetched bytes that were not used yet.
    budget: Arc<PrefetchBudget>,
    file_feedback: Arc<Feedback>,
    directory_feedback: Arc<Feedback>,
    /// The number of waiting work items.
    waiting: AtomicUsize,
    /// Work items that read more than was requested, waiting or in progress.
    prefetching: Gauge,
    /// Clusters and rests of blocks that wait to be pushed.
    pushing: Gauge,
    pub(crate) counts: Counts,
}

#[derive(Default)]
struct KnownWalks {
    walks: DirectoryReadahead,
    /// The first positions of the batches that are not known to be used yet, with their claims on the budget.
    batches: VecDeque<(usize, Arc<Unused>)>,
}

/// The resource that is scarce. Scarce memory reduces windows to their minimum. Scarce CPUs reduce them less, but nothing is
/// decoded ahead of readers of a near source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pressure {
    None,
    Cpus,
    Memory,
}

/// The purpose of a read of a source. Density is measured for each purpose separately.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    Data,
    Metadata,
}

/// A read that may have to wait for its source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Miss {
    /// The window to request from the source in addition.
    pub(crate) window: Option<ByteRange>,
    /// Whether the window of the read was requested before.
    was_asked: bool,
}

/// When the rest of a block is pushed into the page cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PushRest {
    /// At normal priority; the block may be evicted before.
    Later,
    /// Soon; the block is held until then.
    Soon,
}

impl Controller {
    pub(crate) fn new(options: &VolumeOptions, budget: Arc<PrefetchBudget>) -> Self {
        let controller = Self {
            kinds: AtomicU8::new(0),
            reads_more: AtomicBool::new(false),
            fault_around_bytes: AtomicU64::new(0),
            sink: OnceLock::new(),
            sequential: Mutex::default(),
            walks: Mutex::default(),
            data: Density::new(NEAR_READS),
            metadata: Density::new(NEAR_READS),
            clusters: Density::new(CLUSTER_MEMORY_READS),
            files: Density::new(FILE_MEMORY_READS),
            decoded: DropBehind::default(),
            miss_cost: MissCost::default(),
            budget,
            file_feedback: Feedback::new(MovingShare::WHOLE, JUDGED_BYTES),
            directory_feedback: Feedback::new(
                (DIRECTORY_WINDOW_MIN * u64::from(MovingShare::WHOLE) / WINDOW_MAX) as u32,
                JUDGED_BYTES,
            ),
            waiting: AtomicUsize::new(0),
            prefetching: Gauge::default(),
            pushing: Gauge::default(),
            counts: Counts::default(),
        };
        controller.set(options);
        controller
    }

    /// Applies changed options.
    pub(crate) fn set(&self, options: &VolumeOptions) {
        let kinds = if options.read_around { options.prefetch } else { options.prefetch.without_reading() };
        self.kinds.store(kinds.bits(), Relaxed);
        self.reads_more.store(options.read_around, Relaxed);
        self.fault_around_bytes.store(if options.read_around { options.fetch_around_bytes } else { 0 }, Relaxed);
    }

    /// Whether a kind of prefetch is switched on.
    pub(crate) fn has(&self, kind: PrefetchKind) -> bool {
        PrefetchSet::from_bits(self.kinds.load(Relaxed)).has(kind)
    }

    pub(crate) fn set_sink(&self, sink: Box<dyn Sink>) {
        // A second sink would get the same bytes, so the first stays.
        let _ = self.sink.set(sink);
    }

    pub(crate) fn sink(&self) -> Option<&dyn Sink> {
        self.sink.get().map(Box::as_ref)
    }

    pub(crate) fn counters(&self) -> ReadAroundCounters {
        let (used_blocks, wasted_blocks) = self.file_feedback.used_and_wasted();
        self.counts.so_far(used_blocks, wasted_blocks)
    }

    /// Whether the source is far, so that windows are requested from it before they are read.
    pub(crate) fn is_far(&self) -> bool {
        self.miss_cost.window_bytes() > 0
    }

    /// Notes the start of a read, and returns the window to decode ahead if the reader is sequential.
    pub(crate) fn note_read(&self, nid: Nid, range: ByteRange, pressure: impl FnOnce() -> Pressure) -> Option<Ahead> {
        if !self.has(PrefetchKind::Sequential) {
            return None;
        }
        let mut sequential = self.sequential.lock();
        let reader = sequential.note(nid, range);
        // A large first read is most likely continued; over a far source, waiting for the second one costs a round trip.
        let is_begun = reader.run == 1 && range.offset() == 0 && range.len() >= FAR_BEGUN_BYTES_MIN && self.is_far();
        if reader.run < RUN_MIN && !is_begun {
            return None;
        }
        let pressure = pressure();
        if pressure == Pressure::Cpus && !self.is_far() {
            // The thread that decodes ahead would lose its CPU in the middle of a block, which readers then wait for.
            return None;
        }
        let max = self.window(&self.file_feedback, pressure).max(FILE_WINDOW_MIN);
        let window = (FILE_WINDOW_MIN << (reader.run - 1).min(16)).max(2 * range.len());
        let window = window.min(max).min(self.budget.max_bytes() / 2);
        let (start, end) = (reader.ahead_end.max(reader.next), reader.next + window);
        // The next step comes when half of the window is used up, because small steps are not worth the work.
        if start + window / 2 > end || window == 0 {
            return None;
        }
        Some(reader.read_ahead(ByteRange::between(start, end)))
    }

    /// Notes the first read of a file, and returns the next files if it belongs to a directory walk.
    pub(crate) fn next_files(&self, nid: Nid, pressure: impl FnOnce() -> Pressure) -> Vec<AheadFile> {
        if self.sink.get().is_none() || !self.has(PrefetchKind::Directory) {
            return Vec::new();
        }
        let KnownWalks { walks, batches } = &mut *self.walks.lock();
        let Some(arrival) = walks.note_read(nid) else { return Vec::new() };
        while arrival.is_marker && batches.front().is_some_and(|(first, _)| *first <= arrival.position) {
            batches.pop_front().into_iter().for_each(|(_, batch)| batch.note_used());
        }
        if arrival.walking_share < WALK_SHARE_MIN {
            batches.clear();
            return Vec::new();
        }
        let window = self.window(&self.directory_feedback, pressure()).max(DIRECTORY_WINDOW_MIN);
        let batch = walks.batch_after(arrival.position, window);
        let bytes = batch.iter().map(|ahead| ahead.file.size).sum();
        let first = batch.first().map(|ahead| ahead.position);
        batches.extend(first.and_then(|first| Some((first, self.budget.claim(bytes, &self.directory_feedback)?))));
        if batches.len() > BATCHES_MAX {
            batches.pop_front();
        }
        batch
    }

    /// The maximum window in bytes for the kind of prefetch with this feedback; 0 while memory is short.
    fn window(&self, feedback: &Feedback, pressure: Pressure) -> u64 {
        let near = match pressure {
            Pressure::Memory => return 0,
            Pressure::Cpus => WINDOW_MAX / SHORT_CPU_PART,
            Pressure::None => WINDOW_MAX,
        };
        feedback.part_of(near.max(self.miss_cost.window_bytes()))
    }

    /// Notes files of a directory that were listed to readers.
    pub(crate) fn note_listed(&self, directory: Nid, is_beginning: bool, files: &[ListedFile]) {
        if self.has(PrefetchKind::Directory) {
            self.walks.lock().walks.note_listed(directory, is_beginning, files);
        }
    }

    /// Whether a file is still to be prefetched: no reader has reached it.
    pub(crate) fn is_wanted(&self, ahead: &AheadFile) -> bool {
        self.walks.lock().walks.is_wanted(ahead)
    }

    /// Whether recent reads of file data are near each other, so that bytes beside them are likely to be read.
    fn data_is_dense(&self) -> bool {
        self.data.near_share() >= DENSE_SHARE_MIN
    }

    /// Notes that a read of a source was in memory.
    pub(crate) fn note_hit(&self, purpose: Purpose, device: DeviceId, wanted: ByteRange) {
        if let Some((window, _)) = self.window_around(device, wanted) {
            self.density(purpose).note(window);
        }
    }

    /// Notes that a read of a source was not in memory, before it waits. A source that `reads_around` by itself is asked only for
    /// windows of metadata, which are small beside the image, and which further names will need.
    pub(crate) fn note_miss(&self, purpose: Purpose, device: DeviceId, wanted: ByteRange, reads_around: bool) -> Miss {
        let Some((window, range)) = self.window_around(device, wanted) else {
            return Miss { window: None, was_asked: false };
        };
        let density = self.density(purpose);
        let is_dense = density.near_share() >= DENSE_SHARE_MIN;
        let was_asked = density.note(window).was_asked;
        let may_ask = !reads_around || purpose == Purpose::Metadata;
        let is_asked = may_ask && is_dense && !was_asked && self.fault_around_bytes.load(Relaxed) > 0;
        if is_asked {
            density.note_asked(window);
        }
        Miss { window: is_asked.then_some(range), was_asked }
    }

    /// Notes how long the read of `len` bytes after a miss took.
    pub(crate) fn note_waited(&self, miss: Miss, len: usize, waited: Duration) {
        if !miss.was_asked {
            self.miss_cost.learn(len, miss.window.map_or(0, |window| window.len()), waited);
        }
    }

    /// The window around a read of a source; `None` if the read is at least as large.
    fn window_around(&self, device: DeviceId, wanted: ByteRange) -> Option<(Window, ByteRange)> {
        let near = match self.fault_around_bytes.load(Relaxed) {
            0 => WATCHED_BYTES,
            window_bytes => window_bytes,
        };
        // Window sizes are powers of two, so that small changes of the estimate do not change the windows.
        let window_bytes = near << (self.miss_cost.window_bytes() / near).checked_ilog2().unwrap_or(0);
        let number = wanted.offset().checked_div(window_bytes).filter(|_| wanted.len() < window_bytes)?;
        let range = ByteRange::new(number * window_bytes, window_bytes);
        Some((Window { owner: device.0.into(), number }, range))
    }

    fn density(&self, purpose: Purpose) -> &Density {
        match purpose {
            Purpose::Data => &self.data,
            Purpose::Metadata => &self.metadata,
        }
    }

    /// Notes stored bytes that were read to be decoded, and returns stored bytes that may leave the page cache.
    pub(crate) fn note_decoded(&self, device: DeviceId, range: ByteRange) -> Option<(DeviceId, ByteRange)> {
        self.decoded.note(device, range).filter(|_| self.has(PrefetchKind::DropBehind))
    }

    /// Whether and when the rest of a block with this decode cost is pushed. While reads are scattered, the rest is unlikely
    /// to be read soon. Then it is pushed only for blocks that many files share, and for blocks so costly that pushing adds
    /// little.
    pub(crate) fn push_rest(&self, decode_cost: Duration, is_shared: bool) -> Option<PushRest> {
        let is_worthwhile = is_shared || decode_cost >= PUSHED_ALWAYS_DECODE || self.data_is_dense();
        let when = if decode_cost >= PUSHED_SOON_DECODE { PushRest::Soon } else { PushRest::Later };
        is_worthwhile.then_some(when)
    }

    /// Notes a small read of a file, and returns whether it is probably the only one: recent small reads were the first of their
    /// file, and so is this one.
    pub(crate) fn is_only_read(&self, nid: Nid) -> bool {
        let visit = self.files.note(Window { owner: nid.0, number: 0 });
        visit.reads == 1 && self.files.near_share() < READ_AGAIN_SHARE_MIN
    }

    /// Notes a small read of bytes that may be part of a cluster; returns the cluster around it, if that is to be pushed.
    pub(crate) fn cluster(&self, nid: Nid, range: ByteRange) -> Option<ByteRange> {
        if !self.reads_more.load(Relaxed) {
            return None;
        }
        let window = cluster_window(nid, range);
        let visit = self.clusters.note(window);
        let is_due = visit.reads >= CLUSTER_READS && !visit.was_asked;
        is_due.then(|| ByteRange::new(window.number * CLUSTER_BYTES, CLUSTER_BYTES))
    }

    /// Notes that a cluster is being pushed. Without that, the next read of the cluster returns it again.
    pub(crate) fn note_cluster(&self, nid: Nid, cluster: ByteRange) {
        self.clusters.note_asked(cluster_window(nid, cluster));
    }

    /// Admits one more work item to wait. If too many wait, counts it as dropped and returns `None`.
    pub(crate) fn admit(self: &Arc<Self>) -> Option<Admitted> {
        if self.waiting.fetch_add(1, Relaxed) >= WAITING_MAX {
            self.waiting.fetch_sub(1, Relaxed);
            self.counts.dropped();
            return None;
        }
        Some(Admitted(Arc::clone(self)))
    }

    /// Counts a work item that reads more than was requested, until the result is dropped.
    pub(crate) fn count_prefetch(&self) -> Counted {
        self.prefetching.enter()
    }

    /// Whether there is a work item that reads more than was requested.
    pub(crate) fn is_prefetching(&self) -> bool {
        self.prefetching.now() > 0
    }

    /// Claims bytes of the budget for a block that is decoded ahead; `None` if the budget is used up.
    pub(crate) fn claim_ahead(&self, bytes: u64) -> Option<Arc<Unused>> {
        self.budget.claim(bytes, &self.file_feedback)
    }

    /// Claims `bytes` of the budget for a block or cluster until it is pushed. If the budget is used up, counts it as dropped
    /// and returns `None`.
    pub(crate) fn hold(&self, bytes: u64) -> Option<Arc<Unused>> {
        let held = self.budget.hold(bytes);
        if held.is_none() {
            self.counts.dropped();
        }
        held
    }

    /// Counts a cluster or the rest of a block that waits to be pushed, and returns whether it is the only one.
    pub(crate) fn count_push(&self) -> (Counted, bool) {
        let counted = self.pushing.enter();
        let is_alone = self.pushing.now() == 1;
        (counted, is_alone)
    }
}

/// A waiting work item. Dropping it ends the wait.
pub(crate) struct Admitted(Arc<Controller>);

impl Drop for Admitted {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Relaxed);
    }
}

/// The window of the cluster in which a range begins.
fn cluster_window(nid: Nid, range: ByteRange) -> Window {
    Window { owner: nid.0, number: range.offset() / CLUSTER_BYTES }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
