//! The threads of the cache, for prefetch and for parallel fetches. No other module starts threads.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use crate::{Cause, flights::Boarding, layout::ChunkIndex, object::RemoteObject, verity::Attempt};

/// The maximum number of waiting hints; further hints are dropped.
const HINTS_MAX: usize = 4096;

/// The maximum number of prefetch threads.
const THREADS_MAX: usize = 16;

/// How long a thread waits for further hints before it ends.
const IDLE: Duration = Duration::from_secs(10);

/// Fetches chunks ahead of demand, on threads that exist only while there is work.
pub(crate) struct Prefetch {
    hints: Arc<Hints>,
}

struct Hints {
    object: Arc<RemoteObject>,
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
    pub(crate) fn new(object: Arc<RemoteObject>) -> Self {
        Self { hints: Arc::new(Hints { object, queue: Mutex::default(), has_work: Condvar::new() }) }
    }

    /// Queues the chunks from `first` to `last` for prefetch.
    pub(crate) fn add(&self, first: ChunkIndex, last: ChunkIndex) {
        let mut queue = self.hints.lock();
        if queue.hints.len() < HINTS_MAX && queue.hints.back() != Some(&(first, last)) {
            queue.hints.push_back((first, last));
            self.hints.wake(queue);
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
            let leads = match object.flights.board(index, count, Cause::Prefetch) {
                Boarding::Lead(leads) => leads,
                Boarding::Join(_) => Vec::new(),
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
            let (back, timeout) = self.has_work.wait_timeout(queue, IDLE).unwrap_or_else(PoisonError::into_inner);
            queue = back;
            queue.idle -= 1;
            if timeout.timed_out() && queue.hints.is_empty() {
                queue.threads -= 1;
                return None;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
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
