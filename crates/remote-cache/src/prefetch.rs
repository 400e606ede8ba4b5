//! Prefetch: hints, detection of sequential readers, and the threads. No other module starts threads.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use floe_image::ByteRange;
use floe_sync::{Condvar, Mutex, MutexGuard};

use crate::{Cause, cached_object::CachedObject, flights::Role, layout::ChunkIndex, verity::Attempt};

/// The maximum number of waiting hints; further hints are dropped.
const HINTS_MAX: usize = 4096;

/// The maximum number of prefetch threads.
const THREADS_MAX: usize = 16;

/// How long a thread waits for further hints before it ends.
const IDLE: Duration = Duration::from_secs(10);

/// The number of readers that are distinguished.
const READERS_MAX: usize = 8;

/// The maximum number of chunks fetched ahead of a reader: 16 MiB.
const WINDOW_CHUNKS_MAX: u64 = 64;

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
    /// The first and the last chunk of each hint.
    hints: VecDeque<(ChunkIndex, ChunkIndex)>,
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
        let is_storing = object.cache.as_ref().is_some_and(|cache| cache.is_storing());
        if self.is_held.load(Relaxed) || range.is_empty() || object.stored.is_none() || !is_storing {
            return;
        }
        let hint = (object.layout.index_of(range.offset()), object.layout.index_of(range.end() - 1));
        let mut queue = self.hints.lock();
        if queue.hints.len() < HINTS_MAX && queue.hints.back() != Some(&hint) {
            queue.hints.push_back(hint);
            self.hints.wake(queue);
        }
    }

    /// Notes a read of data, and queues the chunks after it if its reader is sequential.
    pub(crate) fn note_read(&self, range: ByteRange) {
        let is_useful = !range.is_empty() && !self.is_held.load(Relaxed);
        let Some(readers) = self.readers.as_ref().filter(|_| is_useful) else { return };
        let layout = self.hints.object.layout;
        let (first, last) = (layout.index_of(range.offset()), layout.index_of(range.end() - 1));
        if let Some((first, last)) = readers.read(first, last)
            && first < layout.data_chunks()
        {
            self.add(layout.run(first, last.min(layout.data_chunks() - 1) - first + 1));
        }
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
        while let Some((first, last)) = self.next() {
            let object = &self.object;
            let Some(index) = (first..=last).find(|index| !object.is_present(*index)) else { continue };
            let count = object.missing(index, last, Cause::Prefetch);
            let leads = match object.flights.enter(index, count, Cause::Prefetch) {
                Role::Leader(leads) => leads,
                Role::Follower(_) => Vec::new(),
            };
            // A chunk that another thread fetches counts as done. The rest goes back to the queue, where other threads
            // can take it.
            self.put_back(index + (leads.len() as u64).max(1), last);
            object.fill(leads, Cause::Prefetch, Attempt::First);
        }
    }

    fn put_back(self: &Arc<Self>, first: ChunkIndex, last: ChunkIndex) {
        let mut queue = self.lock();
        if first <= last && !queue.is_closed {
            queue.hints.push_front((first, last));
            self.wake(queue);
        }
    }

    /// The next hint; `None` if none arrived for a while, or the object is closed.
    fn next(&self) -> Option<(ChunkIndex, ChunkIndex)> {
        let mut queue = self.lock();
        loop {
            if let Some(hint) = queue.hints.pop_front() {
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

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock()
    }
}

/// The sequential readers of an object. The window fetched ahead of a reader doubles with each chunk that it advances.
#[derive(Debug, Default)]
struct SequentialReaders {
    /// In the order of their last reads.
    readers: Mutex<Vec<Reader>>,
}

#[derive(Clone, Copy, Debug)]
struct Reader {
    /// The chunk that the reader is expected to read next.
    next: ChunkIndex,
    /// The first chunk that was not requested yet.
    ahead: ChunkIndex,
    window: u64,
}

impl SequentialReaders {
    /// Notes a read of the chunks from `first` to `last`. Returns the first and the last chunk to fetch now, if any.
    fn read(&self, first: ChunkIndex, last: ChunkIndex) -> Option<(ChunkIndex, ChunkIndex)> {
        let mut readers = self.readers.lock();
        let is_at = |reader: &Reader| first == reader.next || (first < reader.next && first + 1 >= reader.next);
        let Some(place) = readers.iter().position(is_at) else {
            if readers.len() == READERS_MAX {
                readers.remove(0);
            }
            readers.push(Reader { next: last + 1, ahead: last + 1, window: 1 });
            return None;
        };
        if last < readers[place].next {
            return None;
        }
        let mut reader = readers.remove(place);
        reader.next = last + 1;
        reader.ahead = reader.ahead.max(reader.next);
        reader.window = (reader.window * 2).min(WINDOW_CHUNKS_MAX);
        // A half at a time, so that requests are large.
        let is_due = reader.ahead - reader.next <= reader.window / 2;
        let wanted = is_due.then(|| (reader.ahead, last + reader.window));
        if is_due {
            reader.ahead = reader.ahead.max(last + reader.window + 1);
        }
        readers.push(reader);
        wanted.filter(|(first, last)| first <= last)
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

    #[test]
    fn sequential_readers_are_fetched_ahead() {
        let readers = SequentialReaders::default();
        assert_eq!(readers.read(5, 5), None);
        assert_eq!(readers.read(5, 5), None, "the same chunk");
        assert_eq!(readers.read(6, 6), Some((7, 8)));
        assert_eq!(readers.read(990, 990), None, "another reader");
        assert_eq!(readers.read(7, 7), Some((9, 11)));
        assert_eq!(readers.read(990, 991), Some((992, 993)));
        assert_eq!(readers.read(8, 8), Some((12, 16)));
        let asked: Vec<_> = (9..200).filter_map(|chunk| readers.read(chunk, chunk)).collect();
        assert!(asked.windows(2).all(|pair| pair[0].1 + 1 == pair[1].0), "nothing twice, nothing left out: {asked:?}");
        assert!(asked.iter().all(|(first, last)| last - first < 2 * WINDOW_CHUNKS_MAX));
        assert!(asked.len() < 20, "{asked:?}");
    }

    #[test]
    fn scattered_readers_are_not_fetched_ahead() {
        let readers = SequentialReaders::default();
        for chunk in [900, 3, 70, 68, 500, 20, 1, 3000, 40, 12, 900_000, 8] {
            assert_eq!(readers.read(chunk, chunk), None, "{chunk}");
        }
    }
}
