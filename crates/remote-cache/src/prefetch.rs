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

use crate::{Cause, SECTION_BYTES, cached_object::CachedObject, flights::Role, layout::ChunkIndex, verity::Attempt};

/// The maximum number of waiting hints; further hints are dropped.
const HINTS_MAX: usize = 4096;

/// The maximum number of prefetch threads.
const THREADS_MAX: usize = 16;

/// How long a thread waits for further hints before it ends.
const IDLE: Duration = Duration::from_secs(10);

/// The number of readers that are distinguished.
const READERS_MAX: usize = 8;

/// The maximum number of sections fetched ahead of a reader: 16 MiB.
const WINDOW_SECTIONS_MAX: u64 = 64;

/// The number of waiting hints among which neighbours of a hint are looked for.
const MERGED_HINTS_MAX: usize = 256;

/// The maximum size in bytes of a region whose missing chunks are fetched because it is dense.
const REGION_BYTES_MAX: u64 = 2 << 20;

/// A region is dense if more than one in this many of its chunks are present or wanted.
const DENSE_PART: u64 = 2;

/// The maximum size in units of a request for a reader that waits in a dense region. Further requests bring the rest.
const DENSE_UNITS_MAX: u64 = 4;

/// A reader is sequential only if it reads at least one in this many of the bytes that it passes.
const SEQUENTIAL_PART: u64 = 2;

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

#[derive(Debug, Default)]
struct Queue {
    /// The chunks of each hint.
    hints: VecDeque<Range<ChunkIndex>>,
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
    pub(crate) fn add(&self, range: ByteRange) {
        let object = &self.hints.object;
        let range = range.intersection(ByteRange::new(0, object.layout.data_len()));
        if !range.is_empty() {
            self.add_chunks(object.chunks_of(range));
        }
    }

    fn add_chunks(&self, chunks: Range<ChunkIndex>) {
        if !self.is_fetching() || chunks.is_empty() {
            return;
        }
        let mut queue = self.hints.lock();
        if queue.hints.len() < HINTS_MAX && queue.hints.back() != Some(&chunks) {
            queue.hints.push_back(chunks);
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
            self.add(ahead);
        }
    }

    /// The chunks to request for a reader that waits for `wanted`: the unit of the link around them, or the half units if they
    /// are in several units. If most of a region around them is present, the rest of it is likely to be read, and is queued.
    pub(crate) fn reach(&self, wanted: Range<ChunkIndex>) -> Range<ChunkIndex> {
        let object = &self.hints.object;
        let chunks_in = |bytes: u64| (bytes / object.layout.chunk_bytes()).max(1);
        let around = |count: u64| {
            let end = wanted.end.next_multiple_of(count).min(object.layout.data_chunks());
            wanted.start / count * count..end.max(wanted.end)
        };
        let unit = chunks_in(object.fetcher.unit_bytes());
        let is_in_unit = wanted.start / unit == (wanted.end - 1) / unit;
        let unit_around = around(if is_in_unit { unit } else { (unit / 2).max(1) });
        let Some(stored) = object.stored.as_ref().filter(|_| self.readers.is_some() && self.is_fetching()) else {
            return unit_around;
        };
        let widest = around(chunks_in(REGION_BYTES_MAX).max(unit));
        let present = stored.presence(widest.clone());
        let is_dense = |region: &Range<ChunkIndex>| {
            let known = (widest.start..).zip(&present).filter(|(index, _)| region.contains(index));
            let count = known.filter(|(index, is_present)| **is_present || wanted.contains(index)).count() as u64;
            count * DENSE_PART > region.end - region.start
        };
        let counts = std::iter::successors(Some(unit * 2), |count| Some(count * 2));
        let regions = counts.take_while(|count| *count <= chunks_in(REGION_BYTES_MAX)).map(around);
        let Some(region) = regions.filter(is_dense).last() else { return unit_around };
        let near = around(unit * DENSE_UNITS_MAX);
        let is_missing = |index: &ChunkIndex| {
            region.contains(index)
                && usize::try_from(index - widest.start).is_ok_and(|place| present.get(place) == Some(&false))
        };
        let before = (near.start..wanted.start).rev().take_while(is_missing).count() as u64;
        let after = (wanted.end..near.end).take_while(is_missing).count() as u64;
        let reach = wanted.start - before..wanted.end + after;
        self.add_chunks(region.start..reach.start);
        self.add_chunks(reach.end..region.end);
        reach
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
        while let Some(hint) = self.next() {
            let object = &self.object;
            let Some(index) = object.first_missing(hint.clone()) else { continue };
            let request = object.request_for(index, index..hint.end, Cause::Prefetch);
            let leads = match object.flights.enter(index, request, Cause::Prefetch) {
                Role::Leader(leads) => leads,
                Role::Follower(_) => Vec::new(),
            };
            // A chunk that another thread fetches counts as done. The rest goes back to the queue, where other threads
            // can take it.
            self.put_back(index + (leads.len() as u64).max(1)..hint.end);
            object.fill(leads, Cause::Prefetch, Attempt::First);
        }
    }

    fn put_back(self: &Arc<Self>, chunks: Range<ChunkIndex>) {
        let mut queue = self.lock();
        if !chunks.is_empty() && !queue.is_closed {
            queue.hints.push_front(chunks);
            self.wake(queue);
        }
    }

    /// The next hint, with the waiting ones near it; `None` if none arrived for a while, or the object is closed.
    fn next(&self) -> Option<Range<ChunkIndex>> {
        let mut queue = self.lock();
        loop {
            if let Some(mut hint) = queue.hints.pop_front() {
                self.merge(&mut hint, &mut queue.hints);
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
    fn merge(&self, hint: &mut Range<ChunkIndex>, waiting: &mut VecDeque<Range<ChunkIndex>>) {
        let chunks_in = |bytes: u64| bytes / self.object.layout.chunk_bytes();
        let gap = chunks_in(self.object.fetcher.unit_bytes() / 2);
        let count_max = chunks_in(self.object.fetcher.request_bytes(Cause::Prefetch));
        while hint.end - hint.start < count_max {
            let is_near = |other: &Range<ChunkIndex>| other.start <= hint.end + gap && hint.start <= other.end + gap;
            let place = waiting.iter().take(MERGED_HINTS_MAX).position(is_near);
            let Some(other) = place.and_then(|place| waiting.remove(place)) else { return };
            *hint = hint.start.min(other.start)..hint.end.max(other.end);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock()
    }
}

/// The sequential readers of an object. The window fetched ahead of a reader doubles with each section that it advances.
#[derive(Debug, Default)]
struct SequentialReaders {
    /// In the order of their last reads.
    readers: Mutex<Vec<Reader>>,
}

#[derive(Clone, Copy, Debug)]
struct Reader {
    /// The section that the reader is expected to read next.
    next: u64,
    /// The first section that was not requested yet.
    ahead: u64,
    /// In sections.
    window: u64,
    /// Where it began to read, and how many bytes it has read since.
    start: u64,
    bytes: u64,
}

impl Reader {
    /// A reader that begins with this read.
    fn new(range: ByteRange) -> Self {
        let next = (range.end() - 1) / SECTION_BYTES + 1;
        Self { next, ahead: next, window: 1, start: range.offset(), bytes: range.len() }
    }
}

impl SequentialReaders {
    /// Notes a read, which is not empty. Returns the bytes to fetch now, if any.
    fn read(&self, range: ByteRange) -> Option<ByteRange> {
        let (first, last) = (range.offset() / SECTION_BYTES, (range.end() - 1) / SECTION_BYTES);
        let mut readers = self.readers.lock();
        let is_at = |reader: &Reader| first == reader.next || (first < reader.next && first + 1 >= reader.next);
        let Some(place) = readers.iter().position(is_at) else {
            if readers.len() == READERS_MAX {
                readers.remove(0);
            }
            readers.push(Reader::new(range));
            return None;
        };
        readers[place].bytes += range.len();
        if last < readers[place].next {
            return None;
        }
        let mut reader = readers.remove(place);
        if reader.bytes * SEQUENTIAL_PART < range.end().saturating_sub(reader.start) {
            // It only passes by.
            readers.push(Reader::new(range));
            return None;
        }
        reader.next = last + 1;
        reader.ahead = reader.ahead.max(reader.next);
        reader.window = (reader.window * 2).min(WINDOW_SECTIONS_MAX);
        // A half at a time, so that requests are large.
        let is_due = reader.ahead - reader.next <= reader.window / 2;
        let wanted = is_due
            .then(|| ByteRange::between(reader.ahead * SECTION_BYTES, (last + reader.window + 1) * SECTION_BYTES));
        if is_due {
            reader.ahead = reader.ahead.max(last + reader.window + 1);
        }
        readers.push(reader);
        wanted.filter(|wanted| !wanted.is_empty())
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads whole sections. Returns the first and the last section to fetch.
    fn read(readers: &SequentialReaders, first: u64, last: u64) -> Option<(u64, u64)> {
        let ahead = readers.read(ByteRange::between(first * SECTION_BYTES, (last + 1) * SECTION_BYTES))?;
        assert!(ahead.offset().is_multiple_of(SECTION_BYTES) && ahead.end().is_multiple_of(SECTION_BYTES));
        Some((ahead.offset() / SECTION_BYTES, ahead.end() / SECTION_BYTES - 1))
    }

    #[test]
    fn sequential_readers_are_fetched_ahead() {
        let readers = SequentialReaders::default();
        let read = |first, last| read(&readers, first, last);
        assert_eq!(read(5, 5), None);
        assert_eq!(read(5, 5), None, "the same section");
        assert_eq!(read(6, 6), Some((7, 8)));
        assert_eq!(read(990, 990), None, "another reader");
        assert_eq!(read(7, 7), Some((9, 11)));
        assert_eq!(read(990, 991), Some((992, 993)));
        assert_eq!(read(8, 8), Some((12, 16)));
        let asked: Vec<_> = (9..200).filter_map(|section| read(section, section)).collect();
        assert!(asked.windows(2).all(|pair| pair[0].1 + 1 == pair[1].0), "nothing twice, nothing left out: {asked:?}");
        assert!(asked.iter().all(|(first, last)| last - first < 2 * WINDOW_SECTIONS_MAX));
        assert!(asked.len() < 20, "{asked:?}");
    }

    #[test]
    fn scattered_readers_are_not_fetched_ahead() {
        let readers = SequentialReaders::default();
        for section in [900, 3, 70, 68, 500, 20, 1, 3000, 40, 12, 900_000, 8] {
            assert_eq!(read(&readers, section, section), None, "{section}");
        }
        // Neither are those that read a little of each section.
        for section in 100..130 {
            let small = ByteRange::new(section * SECTION_BYTES + 77, 4096);
            assert_eq!(readers.read(small), None, "{section}");
        }
        assert!(read(&readers, 130, 131).is_some(), "from here on, it reads all");
    }
}
