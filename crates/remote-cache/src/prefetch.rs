//! Prefetch: hints, dense regions, detection of sequential readers, and the threads. No other module starts threads.

use std::{
    collections::VecDeque,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use floe_image::ByteRange;
use floe_sync::{Condvar, Mutex, MutexGuard};

use crate::{
    AheadReason, Cause,
    cached_object::{CachedObject, Reach},
    flights::Role,
    layout::ChunkIndex,
    reach::{DenseRegion, Judgement, Presence, Wanted},
    sequential_readers::SequentialReaders,
    verity::Attempt,
};

/// The maximum number of waiting hints; further hints are dropped.
const HINTS_MAX: usize = 4096;

/// The maximum number of prefetch threads.
const THREADS_MAX: usize = 16;

/// How long a thread waits for further hints before it ends.
const IDLE: Duration = Duration::from_secs(10);

/// The number of waiting hints among which neighbours of a hint are looked for.
const MERGED_HINTS_MAX: usize = 256;

/// The maximum size in bytes of a region whose missing chunks are fetched because it is dense.
const REGION_BYTES_MAX: u64 = 2 << 20;

/// With units of at least this many bytes, a wait takes so much longer than a transfer that bytes ahead of readers need no allowance.
const GENEROUS_UNIT_BYTES: u64 = 128 << 10;

/// Fetches chunks ahead of demand, on threads that exist only while there is work.
pub(crate) struct Prefetch {
    hints: Arc<Hints>,
    /// `None` if sequential readers are not to be detected.
    readers: Option<SequentialReaders>,
    /// Whether nothing is fetched ahead at present.
    is_held: AtomicBool,
}

struct Hints {
    object: Arc<CachedObject>,
    queue: Mutex<Queue>,
    has_work: Condvar,
}

/// Chunks to fetch if they are missing, and the reason.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Hint {
    chunks: Range<ChunkIndex>,
    reason: AheadReason,
}

#[derive(Debug, Default)]
struct Queue {
    hints: VecDeque<Hint>,
    threads: usize,
    idle: usize,
    is_closed: bool,
}

impl Prefetch {
    pub(crate) fn new(object: Arc<CachedObject>, reads_ahead: bool) -> Self {
        let hints = Arc::new(Hints { object, queue: Mutex::default(), has_work: Condvar::new() });
        Self { hints, readers: reads_ahead.then(SequentialReaders::default), is_held: AtomicBool::new(false) }
    }

    /// Pauses prefetch: while it is held, hints and sequential readers cause no fetches.
    pub(crate) fn hold(&self, is_held: bool) {
        self.is_held.store(is_held, Relaxed);
    }

    /// Queues the missing chunks of `range`, unless they could not be stored.
    pub(crate) fn add(&self, range: ByteRange, reason: AheadReason) {
        let object = &self.hints.object;
        let range = range.intersection(ByteRange::new(0, object.layout.data_len()));
        if !range.is_empty() {
            self.add_chunks(object.chunks_of(range), reason);
        }
    }

    fn add_chunks(&self, chunks: Range<ChunkIndex>, reason: AheadReason) {
        if !self.is_fetching() || chunks.is_empty() {
            return;
        }
        let hint = Hint { chunks, reason };
        let mut queue = self.hints.lock();
        if queue.hints.len() < HINTS_MAX && queue.hints.back() != Some(&hint) {
            queue.hints.push_back(hint);
            self.hints.wake(queue);
        }
    }

    /// Whether hints cause fetches at present: their chunks can be stored, and prefetch is not held.
    fn is_fetching(&self) -> bool {
        let object = &self.hints.object;
        let is_storing = object.cache.as_ref().is_some_and(|cache| cache.is_storing());
        !self.is_held.load(Relaxed) && object.stored.is_some() && is_storing
    }

    /// Notes a read of data, and queues the chunks after it if its reader is sequential.
    pub(crate) fn note_read(&self, range: ByteRange) {
        let is_useful = !range.is_empty() && !self.is_held.load(Relaxed);
        let Some(readers) = self.readers.as_ref().filter(|_| is_useful) else { return };
        if let Some(ahead) = readers.read(range) {
            self.add(ahead, AheadReason::Sequential);
        }
    }

    /// The chunks to request for a reader that waits for `wanted`: the unit of the link around them, or the half units if they
    /// are in several units. If some of a region around them was read, the rest of it is likely to be read, and is queued. Unless waits
    /// are long beside transfers, neither happens while too few of the chunks that were fetched for it are read.
    pub(crate) fn reach(&self, chunks: Range<ChunkIndex>) -> Reach {
        let object = &self.hints.object;
        let chunks_in = |bytes: u64| (bytes / object.layout.chunk_bytes()).max(1);
        let unit_bytes = object.fetcher.unit_bytes();
        let unit = chunks_in(unit_bytes);
        let judgement = if unit_bytes >= GENEROUS_UNIT_BYTES { Judgement::Generous } else { Judgement::Strict };
        object.ahead.note_unit(unit);
        let index = chunks.start;
        let permits = |count| judgement == Judgement::Generous || object.ahead.permits(index, count);
        let wanted = Wanted { chunks, unit, data_chunks: object.layout.data_chunks(), judgement };
        if let Some(stored) = object.stored.as_ref().filter(|_| self.readers.is_some() && self.is_fetching()) {
            let count_max = chunks_in(REGION_BYTES_MAX).max(wanted.unit);
            let widest = wanted.around(count_max);
            let presence = |(index, is_present)| match is_present {
                false => Presence::Missing,
                true if object.ahead.is_unread(index) => Presence::Unread,
                true => Presence::Read,
            };
            let presence: Vec<_> = (widest.start..).zip(stored.presence(widest)).map(presence).collect();
            if let Some(DenseRegion { reach, region }) = wanted.dense_region(count_max, &presence, permits) {
                self.add_chunks(region.start..reach.start, AheadReason::Region);
                self.add_chunks(reach.end..region.end, AheadReason::Region);
                return Reach { chunks: reach, reason: AheadReason::Region };
            }
        }
        Reach { chunks: wanted.rounded(permits), reason: AheadReason::Rounding }
    }
}

impl Drop for Prefetch {
    /// The threads end after their current request. Waiting for them could take as long as an outage.
    fn drop(&mut self) {
        let mut queue = self.hints.lock();
        queue.is_closed = true;
        queue.hints.clear();
        drop(queue);
        self.hints.has_work.notify_all();
    }
}

impl Hints {
    /// Wakes a thread for a hint, or starts one.
    fn wake(self: &Arc<Self>, mut queue: MutexGuard<'_, Queue>) {
        let threads_max = self.object.fetcher.connections().clamp(1, THREADS_MAX);
        if queue.idle == 0 && queue.threads < threads_max {
            let hints = Arc::clone(self);
            // If no thread can be started, the hint waits for the next one to start. Losing time here is acceptable for
            // a hint.
            let spawned = thread::Builder::new().name("floe-prefetch".to_owned()).spawn(move || hints.serve());
            queue.threads += usize::from(spawned.is_ok());
        }
        drop(queue);
        self.has_work.notify_one();
    }

    fn serve(self: &Arc<Self>) {
        while let Some(Hint { chunks, reason }) = self.next() {
            let object = &self.object;
            let Some(index) = object.first_missing(chunks.clone()) else { continue };
            let request = object.request_for(index, index..chunks.end, Cause::Prefetch);
            let leads = match object.flights.enter(index, request, Cause::Prefetch) {
                Role::Leader(leads) => leads,
                Role::Follower(_) => Vec::new(),
            };
            leads.iter().for_each(|lead| object.ahead.note_fetched(lead.index(), reason));
            // A chunk that another thread fetches counts as done. The rest goes back to the queue, where other threads
            // can take it.
            self.put_back(Hint { chunks: index + (leads.len() as u64).max(1)..chunks.end, reason });
            object.fill(leads, Cause::Prefetch, Attempt::First);
        }
    }

    fn put_back(self: &Arc<Self>, hint: Hint) {
        let mut queue = self.lock();
        if !hint.chunks.is_empty() && !queue.is_closed {
            queue.hints.push_front(hint);
            self.wake(queue);
        }
    }

    /// The next hint, with the waiting ones near it; `None` if none arrived for a while, or the object is closed.
    fn next(&self) -> Option<Hint> {
        let mut queue = self.lock();
        loop {
            if let Some(mut hint) = queue.hints.pop_front() {
                self.merge(&mut hint.chunks, &mut queue.hints);
                return Some(hint);
            }
            if queue.is_closed {
                queue.threads -= 1;
                return None;
            }
            queue.idle += 1;
            let (back, timeout) = self.has_work.wait_timeout(queue, IDLE);
            queue = back;
            queue.idle -= 1;
            if timeout.timed_out() && queue.hints.is_empty() {
                queue.threads -= 1;
                return None;
            }
        }
    }

    /// Extends a hint by waiting ones that are no farther from it than a unit of the link, up to the size of a request.
    fn merge(&self, hint: &mut Range<ChunkIndex>, waiting: &mut VecDeque<Hint>) {
        let chunks_in = |bytes: u64| bytes / self.object.layout.chunk_bytes();
        let gap = chunks_in(self.object.fetcher.unit_bytes() / 2);
        let count_max = chunks_in(self.object.fetcher.request_bytes(Cause::Prefetch));
        while hint.end - hint.start < count_max {
            let is_near = |other: &Hint| other.chunks.start <= hint.end + gap && hint.start <= other.chunks.end + gap;
            let place = waiting.iter().take(MERGED_HINTS_MAX).position(is_near);
            let Some(other) = place.and_then(|place| waiting.remove(place)) else { return };
            *hint = hint.start.min(other.chunks.start)..hint.end.max(other.chunks.end);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock()
    }
}

/// Runs `beside` on another thread while `main` runs on this one. If no thread can be started, runs `beside` first.
pub(crate) fn alongside<T>(beside: impl Fn() + Sync, main: impl FnOnce() -> T) -> T {
    thread::scope(|scope| {
        if thread::Builder::new().name("floe-tree".to_owned()).spawn_scoped(scope, &beside).is_err() {
            beside();
        }
        main()
    })
}
