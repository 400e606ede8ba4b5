//! The ranges that a replay stores, and the threads that store them.

use std::{
    collections::VecDeque,
    sync::Arc,
    thread::{Builder, JoinHandle},
    time::Duration,
};

use floe::{ByteRange, Nid};
use floe_sync::{Condvar, Mutex, MutexGuard};

use super::footprint::PAGE_BYTES;

/// The number of queued bytes at which lookups pause.
const FULL_BYTES: u64 = 4 << 20;

/// The size in bytes of the pieces of a long range. Each is stored by one thread.
const PIECE_BYTES: u64 = 256 << 10;

/// The size in bytes of the longest range that is one piece if it is a whole file. The sink may refuse the last page of a
/// file unless all of the file is stored with one call.
const WHOLE_FILE_BYTES: u64 = 1 << 20;

/// A range of a file.
pub(super) type FileRange = (Nid, ByteRange);

/// Stores ranges on one thread.
pub(super) type Storer = Box<dyn Fn(FileRange)>;

/// Ranges that are stored by several threads, in the order in which they were added. When it is dropped, ranges that no
/// thread has taken yet are discarded, and its threads end.
pub(super) struct StoreQueue {
    shared: Arc<Shared>,
    /// For the thread that adds ranges.
    storer: Storer,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    storer: Box<dyn Fn() -> Storer + Send + Sync>,
}

#[derive(Default)]
struct State {
    pieces: VecDeque<FileRange>,
    bytes: u64,
    /// The number of pieces that are being stored.
    storing: usize,
    is_closed: bool,
}

impl StoreQueue {
    /// Starts `thread_count` threads that store the pieces, each with a `storer` of its own. The calling thread, which adds the
    /// ranges, calls [`StoreQueue::store_next`], so the queue also works without threads of its own.
    pub(super) fn new(thread_count: usize, storer: impl Fn() -> Storer + Send + Sync + 'static) -> Self {
        let shared = Arc::new(Shared { state: Mutex::default(), changed: Condvar::new(), storer: Box::new(storer) });
        let threads = (0..thread_count).map_while(|number| {
            let shared = Arc::clone(&shared);
            Builder::new().name(format!("floe-replay/{number}")).spawn(move || shared.work()).ok()
        });
        Self { threads: threads.collect(), storer: (shared.storer)(), shared }
    }

    /// Adds ranges.
    pub(super) fn add(&self, ranges: impl IntoIterator<Item = FileRange>) {
        let mut state = self.shared.lock();
        for range in ranges {
            for piece in pieces_of(range) {
                state.bytes += piece.1.len();
                state.pieces.push_back(piece);
            }
        }
        self.shared.changed.notify_all();
    }

    /// Whether so much is left that no more should be looked up.
    pub(super) fn is_full(&self) -> bool {
        self.shared.lock().bytes >= FULL_BYTES
    }

    /// Stores the next piece. Returns `false` if there is none.
    pub(super) fn store_next(&self) -> bool {
        self.shared.store_next(&self.storer)
    }

    /// Waits for the pieces that other threads are storing, at most for `time`. Returns whether all are stored.
    pub(super) fn wait(&self, time: Duration) -> bool {
        let waited = self.shared.changed.wait_timeout_while(self.shared.lock(), time, |state| state.storing > 0);
        !waited.1.timed_out()
    }
}

impl Drop for StoreQueue {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        *state = State { is_closed: true, storing: state.storing, ..State::default() };
        drop(state);
        self.shared.changed.notify_all();
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

impl Shared {
    /// Stores pieces until the queue is closed.
    fn work(&self) {
        let storer = (self.storer)();
        loop {
            let waiting = |state: &mut State| state.pieces.is_empty() && !state.is_closed;
            let state = self.changed.wait_while(self.lock(), waiting);
            if state.is_closed {
                return;
            }
            drop(state);
            self.store_next(&storer);
        }
    }

    /// Stores the next piece. Returns `false` if there is none.
    fn store_next(&self, storer: &Storer) -> bool {
        let mut state = self.lock();
        let Some(piece) = state.pieces.pop_front() else { return false };
        state.bytes -= piece.1.len();
        state.storing += 1;
        drop(state);
        let storing = Storing { shared: self };
        storer(piece);
        drop(storing);
        true
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

/// A piece that is being stored, also if that panics.
struct Storing<'shared> {
    shared: &'shared Shared,
}

impl Drop for Storing<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.storing -= 1;
        if state.storing == 0 {
            self.shared.changed.notify_all();
        }
    }
}

/// The pieces of a range. Each but the first begins at a page, if the range does.
fn pieces_of((nid, range): FileRange) -> impl Iterator<Item = FileRange> {
    let piece_bytes = match range.offset() == 0 && range.len() <= WHOLE_FILE_BYTES {
        true => WHOLE_FILE_BYTES,
        false => PIECE_BYTES,
    };
    debug_assert!(piece_bytes.is_multiple_of(PAGE_BYTES));
    let starts = (range.offset()..range.end()).step_by(piece_bytes as usize);
    starts.map(move |start| (nid, ByteRange::between(start, range.end().min(start.saturating_add(piece_bytes)))))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Stores ranges with so many threads; returns the stored bytes of each file.
    fn store(thread_count: usize, ranges: &[FileRange]) -> BTreeMap<u64, u64> {
        let stored = Arc::new(Mutex::new(BTreeMap::new()));
        let storing = Arc::clone(&stored);
        let queue = StoreQueue::new(thread_count, move || {
            let storing = Arc::clone(&storing);
            Box::new(move |(nid, range)| {
                assert!(range.len() <= WHOLE_FILE_BYTES && range.offset() % PAGE_BYTES == 0);
                *storing.lock().entry(nid.0).or_default() += range.len();
            })
        });
        for range in ranges {
            queue.add([*range]);
            while queue.is_full() {
                queue.store_next();
            }
        }
        while queue.store_next() {}
        assert!(queue.wait(Duration::from_secs(10)));
        let stored = stored.lock();
        stored.clone()
    }

    #[test]
    fn each_byte_is_stored_once() {
        let ranges: Vec<_> = (0..200).map(|file| (Nid(file % 7), ByteRange::new(file * 8192, 900_000))).collect();
        let expected: BTreeMap<u64, u64> = (0..7)
            .map(|nid| (nid, 900_000 * ranges.iter().filter(|(other, _)| other.0 == nid).count() as u64))
            .collect();
        for thread_count in [0, 1, 5] {
            assert_eq!(store(thread_count, &ranges), expected, "{thread_count}");
        }
    }

    #[test]
    fn long_ranges_are_cut_and_whole_small_files_are_not() {
        let lens = |start, end| -> Vec<u64> {
            pieces_of((Nid(1), ByteRange::between(start, end))).map(|(_, range)| range.len()).collect()
        };
        assert_eq!(lens(0, 5000), [5000]);
        assert_eq!(lens(0, WHOLE_FILE_BYTES), [WHOLE_FILE_BYTES]);
        assert_eq!(lens(0, WHOLE_FILE_BYTES + 1), [PIECE_BYTES, PIECE_BYTES, PIECE_BYTES, PIECE_BYTES, 1]);
        assert_eq!(lens(4096, 4096 + PIECE_BYTES + 10), [PIECE_BYTES, 10]);
        assert!(lens(4096, 4096).is_empty());
    }

    #[test]
    fn an_abandoned_queue_discards_what_is_left() {
        let queue = StoreQueue::new(0, || Box::new(|_| panic!("nobody stores")));
        queue.add([(Nid(1), ByteRange::new(0, 100))]);
        drop(queue);
        let (began, ended) = std::sync::mpsc::channel::<FileRange>();
        let queue = StoreQueue::new(2, move || {
            let began = began.clone();
            Box::new(move |range| began.send(range).expect("the test waits"))
        });
        queue.add([(Nid(1), ByteRange::new(0, 100))]);
        assert_eq!(ended.recv_timeout(Duration::from_secs(10)), Ok((Nid(1), ByteRange::new(0, 100))));
        drop(queue);
        assert!(ended.recv().is_err(), "the threads have ended");
    }
}
