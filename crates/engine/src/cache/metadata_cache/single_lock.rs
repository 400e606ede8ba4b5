//! The metadata cache of the kernel's SquashFS, to compare with.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use floe_image::{Error, Result};

use super::{MetadataCacheCounters, Weight};
use crate::{
    Blocking,
    sync::{Condvar, Mutex, MutexGuard},
};

/// A few entries behind one lock, searched linearly and reused round robin. A lookup that finds all of them in use
/// sleeps until one is free, and each release wakes all sleepers. An entry is in use while it is filled and while its
/// value is copied out.
///
/// Parallel walks of a SquashFS mount suffer from this design; it exists only for comparison with the sharded one.
/// Unlike the kernel's cache, it does not cache failures.
#[derive(Debug)]
pub(crate) struct SingleLockCache<K, V> {
    state: Mutex<State<K, V>>,
    /// Signalled when an entry becomes free.
    freed: Condvar,
    /// Signalled when an entry is filled; one for each entry.
    filled: Vec<Condvar>,
    hits: AtomicU64,
    misses: AtomicU64,
    waits: AtomicU64,
    wakes: AtomicU64,
    wakes_max: AtomicU64,
    releases: AtomicU64,
    evictions: AtomicU64,
    lock_acquisitions: AtomicU64,
}

#[derive(Debug)]
struct State<K, V> {
    entries: Vec<Entry<K, V>>,
    next: usize,
    unused_count: usize,
    /// Threads that sleep until an entry is free and were not woken yet.
    sleeper_count: usize,
    /// How often an entry became free.
    freed_count: u64,
}

#[derive(Debug)]
struct Entry<K, V> {
    key: Option<K>,
    content: Content<V>,
    user_count: usize,
    /// Threads that sleep until the entry is filled.
    waiter_count: usize,
}

#[derive(Debug)]
enum Content<V> {
    Empty,
    Pending,
    Full(V),
    Failed(Error),
}

impl<K: Copy + Eq, V: Clone + Weight> SingleLockCache<K, V> {
    pub(super) fn new(entry_count: usize) -> Self {
        let entry_count = entry_count.max(1);
        let entry = || Entry { key: None, content: Content::Empty, user_count: 0, waiter_count: 0 };
        let zero = || AtomicU64::new(0);
        Self {
            state: Mutex::new(State {
                entries: (0..entry_count).map(|_| entry()).collect(),
                next: 0,
                unused_count: entry_count,
                sleeper_count: 0,
                freed_count: 0,
            }),
            freed: Condvar::new(),
            filled: (0..entry_count).map(|_| Condvar::new()).collect(),
            hits: zero(),
            misses: zero(),
            waits: zero(),
            wakes: zero(),
            wakes_max: zero(),
            releases: zero(),
            evictions: zero(),
            lock_acquisitions: zero(),
        }
    }

    pub(super) fn find_or_make(&self, key: K, blocking: Blocking, make: impl FnOnce() -> Result<V>) -> Result<V> {
        let mut state = self.lock();
        loop {
            if let Some(index) = state.entries.iter().position(|entry| entry.key == Some(key)) {
                match self.use_entry(state, index, blocking) {
                    // The filler was not allowed to wait for the source. This thread may, so it tries to fill the entry
                    // itself.
                    Err(Error::WouldBlock) if blocking.is_allowed() => {
                        state = self.lock();
                        continue;
                    }
                    result => return result,
                }
            }
            if state.unused_count > 0 {
                break;
            }
            if !blocking.is_allowed() {
                return Err(Error::WouldBlock);
            }
            self.waits.fetch_add(1, Relaxed);
            state.sleeper_count += 1;
            let freed_count = state.freed_count;
            while state.freed_count == freed_count {
                state = self.freed.wait(state);
                self.lock_acquisitions.fetch_add(1, Relaxed);
            }
        }
        let (index, evicted) = state.claim(key);
        self.misses.fetch_add(1, Relaxed);
        self.evictions.fetch_add(u64::from(matches!(evicted, Content::Full(_))), Relaxed);
        drop((state, evicted));
        let filling = Filling { cache: self, index, result: Err(Error::Cancelled) };
        filling.fill(make)
    }

    /// Removes the values whose keys are `forgotten`, except those in use.
    pub(super) fn forget_all(&self, forgotten: impl Fn(&K) -> bool) {
        let mut state = self.lock();
        for entry in state.entries.iter_mut().filter(|entry| entry.user_count == 0) {
            if entry.key.as_ref().is_some_and(&forgotten) {
                (entry.key, entry.content) = (None, Content::Empty);
            }
        }
    }

    pub(super) fn counters(&self) -> MetadataCacheCounters {
        MetadataCacheCounters {
            hits: self.hits.load(Relaxed),
            misses: self.misses.load(Relaxed),
            waits: self.waits.load(Relaxed),
            wakes: self.wakes.load(Relaxed),
            wakes_max: self.wakes_max.load(Relaxed),
            releases: self.releases.load(Relaxed),
            evictions: self.evictions.load(Relaxed),
            lock_acquisitions: self.lock_acquisitions.load(Relaxed),
            weight: self.weight() as u64,
            weight_max: 0,
        }
    }

    fn weight(&self) -> usize {
        let state = self.state.lock();
        let weight = |entry: &Entry<K, V>| if let Content::Full(value) = &entry.content { value.weight() } else { 0 };
        state.entries.iter().map(weight).sum()
    }

    /// Uses an entry: waits until it is filled, copies its value out and releases it.
    fn use_entry(&self, mut state: MutexGuard<'_, State<K, V>>, index: usize, blocking: Blocking) -> Result<V> {
        if matches!(state.entries[index].content, Content::Pending) && !blocking.is_allowed() {
            return Err(Error::WouldBlock);
        }
        state.unused_count -= usize::from(state.entries[index].user_count == 0);
        state.entries[index].user_count += 1;
        if matches!(state.entries[index].content, Content::Pending) {
            self.waits.fetch_add(1, Relaxed);
            state.entries[index].waiter_count += 1;
            while matches!(state.entries[index].content, Content::Pending) {
                state = self.filled[index].wait(state);
                self.lock_acquisitions.fetch_add(1, Relaxed);
            }
        } else {
            self.hits.fetch_add(1, Relaxed);
        }
        let value = match &state.entries[index].content {
            Content::Full(value) => Ok(value.clone()),
            Content::Failed(error) => Err(error.clone()),
            Content::Empty | Content::Pending => Err(Error::Cancelled),
        };
        drop(state);
        let copy = value.map(|value| value.deep_copy());
        self.release(self.lock(), index);
        copy
    }

    /// Releases a filled entry, and wakes the threads that sleep for it or, if it is now free, for any entry.
    fn release(&self, mut state: MutexGuard<'_, State<K, V>>, index: usize) {
        let entry = &mut state.entries[index];
        let waiter_count = std::mem::take(&mut entry.waiter_count);
        let mut sleeper_count = 0;
        entry.user_count -= 1;
        if entry.user_count == 0 {
            if matches!(entry.content, Content::Failed(_)) {
                entry.key = None;
                entry.content = Content::Empty;
            }
            state.unused_count += 1;
            state.freed_count += 1;
            sleeper_count = std::mem::take(&mut state.sleeper_count);
        }
        drop(state);
        if waiter_count > 0 {
            self.filled[index].notify_all();
        }
        if sleeper_count > 0 {
            self.freed.notify_all();
        }
        let woken_count = (waiter_count + sleeper_count) as u64;
        self.releases.fetch_add(1, Relaxed);
        self.wakes.fetch_add(woken_count, Relaxed);
        self.wakes_max.fetch_max(woken_count, Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, State<K, V>> {
        self.lock_acquisitions.fetch_add(1, Relaxed);
        self.state.lock()
    }
}

impl<K: Copy, V> State<K, V> {
    /// Claims the next unused entry, of which there must be one. Returns its index and its previous content.
    fn claim(&mut self, key: K) -> (usize, Content<V>) {
        while self.entries[self.next].user_count > 0 {
            self.next = (self.next + 1) % self.entries.len();
        }
        let index = self.next;
        self.next = (self.next + 1) % self.entries.len();
        self.unused_count -= 1;
        let claimed = Entry { key: Some(key), content: Content::Pending, user_count: 1, waiter_count: 0 };
        let evicted = std::mem::replace(&mut self.entries[index], claimed).content;
        (index, evicted)
    }
}

/// An entry that is being filled. Dropping it publishes the result, also after a panic.
struct Filling<'cache, K: Copy + Eq, V: Clone + Weight> {
    cache: &'cache SingleLockCache<K, V>,
    index: usize,
    result: Result<V>,
}

impl<K: Copy + Eq, V: Clone + Weight> Filling<'_, K, V> {
    fn fill(mut self, make: impl FnOnce() -> Result<V>) -> Result<V> {
        self.result = make();
        self.result.as_ref().map(Weight::deep_copy).map_err(Error::clone)
    }
}

impl<K: Copy + Eq, V: Clone + Weight> Drop for Filling<'_, K, V> {
    fn drop(&mut self) {
        let mut state = self.cache.lock();
        let entry = &mut state.entries[self.index];
        entry.content = match std::mem::replace(&mut self.result, Err(Error::Cancelled)) {
            Ok(value) => Content::Full(value),
            Err(error) => Content::Failed(error),
        };
        self.cache.release(state, self.index);
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn a_blocking_lookup_survives_a_failed_non_blocking_one() {
        let cache = SingleLockCache::<u32, DecodedLength>::new(8);
        let value = std::thread::scope(|scope| {
            let (begun, is_begun) = std::sync::mpsc::channel();
            let cache = &cache;
            let looker = scope.spawn(move || {
                cache.find_or_make(7, Blocking::Never, || {
                    begun.send(()).unwrap();
                    while cache.counters().waits == 0 {
                        std::thread::yield_now();
                    }
                    Err(Error::WouldBlock)
                })
            });
            is_begun.recv().unwrap();
            let value = cache.find_or_make(7, Blocking::Allowed, || Ok(DecodedLength(5)));
            assert!(matches!(looker.join().unwrap(), Err(Error::WouldBlock)));
            value
        });
        assert_eq!(value.unwrap().0, 5);
    }

    #[derive(Clone, Debug)]
    struct DecodedLength(usize);

    impl Weight for DecodedLength {
        fn weight(&self) -> usize {
            self.0
        }

        fn deep_copy(&self) -> Self {
            self.clone()
        }
    }
}
