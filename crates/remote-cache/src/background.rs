//! The threads of the cache: prefetch, and fetches beside fetches. Nothing else here spawns any.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use crate::{
    Cause,
    flights::Boarding,
    layout::ChunkIndex,
    object::RemoteObject,
    verity::Attempt,
};

/// How many hints wait at most; further ones are dropped.
const HINTS_MAX: usize = 4096;

/// The most threads that prefetch.
const THREADS_MAX: usize = 16;

/// How long a thread waits for further hints before it ends.
const IDLE: Duration = Duration::from_secs(10);

/// Gets chunks before anybody asks for them, on threads that exist while there is work.
pub(crate) struct Prefetch {
    object: Arc<RemoteObject>,
    hints: Arc<Hints>,
}

#[derive(Debug, Default)]
struct Hints {
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
        Self { object, hints: Arc::default() }
    }

    /// Gets the chunks from `first` to `last` soon.
    pub(crate) fn add(&self, first: ChunkIndex, last: ChunkIndex) {
        let mut queue = self.hints.lock();
        if queue.hints.len() >= HINTS_MAX || queue.hints.back() == Some(&(first, last)) {
            return;
        }
        queue.hints.push_back((first, last));
        let threads_max = self.object.fetcher.connections().clamp(1, THREADS_MAX);
        if queue.idle == 0 && queue.threads < threads_max {
            let (object, hints) = (Arc::clone(&self.object), Arc::clone(&self.hints));
            // Without a thread the hint waits for the next one; it is only a hint.
            let spawned = thread::Builder::new().name("floe-prefetch".to_owned()).spawn(move || hints.serve(&object));
            queue.threads += usize::from(spawned.is_ok());
        }
        drop(queue);
        self.hints.has_work.notify_one();
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
    fn serve(&self, object: &RemoteObject) {
        while let Some((first, last)) = self.next() {
            let mut index = first;
            while index <= last && !self.lock().is_closed {
                if object.is_present(index) {
                    index += 1;
                    continue;
                }
                let count = object.missing(index, last, Cause::Prefetch);
                if index + count <= last {
                    // Another thread may take the rest.
                    self.put_back(index + count, last);
                }
                if let Boarding::Lead(leads) = object.flights.board(index, count, Cause::Prefetch) {
                    object.fill(leads, Cause::Prefetch, Attempt::First);
                }
                break;
            }
        }
    }

    fn next(&self) -> Option<(ChunkIndex, ChunkIndex)> {
        let mut queue = self.lock();
        loop {
            if let Some(hint) = queue.hints.pop_front().filter(|_| !queue.is_closed) {
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

    fn put_back(&self, first: ChunkIndex, last: ChunkIndex) {
        let mut queue = self.lock();
        if !queue.is_closed {
            queue.hints.push_front((first, last));
        }
        drop(queue);
        self.has_work.notify_one();
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
