//! The threads of the cache: prefetch, and fetches beside fetches. Nothing else here spawns any.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use crate::{Cause, flights::Boarding, layout::ChunkIndex, object::RemoteObject, verity::Attempt};

/// How many hints wait at most; further ones are dropped.
const HINTS_MAX: usize = 4096;

/// The most threads that prefetch.
const THREADS_MAX: usize = 16;

/// How long a thread waits for further hints before it ends.
const IDLE: Duration = Duration::from_secs(10);

/// Gets chunks before anybody asks for them, on threads that exist while there is work.
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

    /// Gets the chunks from `first` to `last` soon.
    pub(crate) fn add(&self, first: ChunkIndex, last: ChunkIndex) {
        let mut queue = self.hints.lock();
        if queue.hints.len() < HINTS_MAX && queue.hints.back() != Some(&(first, last)) {
            queue.hints.push_back((first, last));
            self.hints.wake(queue);
        }
    }
}

impl Drop for Prefetch {
    /// Threads end after the request that they wait for. They are not waited for: that may be an outage.
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
            // Without a thread the hint waits for the next one; it is only a hint.
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
            // The chunk that another thread gets counts as done. The rest may be taken by others meanwhile.
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

    /// The next hint; `None` once there has been none for a while, or the object is closed.
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

/// Runs `beside` on a thread of its own while `main` runs here; before it, where no thread is to be had.
pub(crate) fn alongside<T>(beside: impl Fn() + Sync, main: impl FnOnce() -> T) -> T {
    thread::scope(|scope| {
        if thread::Builder::new().name("floe-tree".to_owned()).spawn_scoped(scope, &beside).is_err() {
            beside();
        }
        main()
    })
}
