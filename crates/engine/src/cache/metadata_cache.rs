//! The cache of metadata that formats read repeatedly.

mod sharded;
mod single_lock;

use std::hash::Hash;

use floe_image::{Result, metrics};

use self::{sharded::ShardedCache, single_lock::SingleLockCache};
use crate::Blocking;

/// A cache of metadata in one of two designs. Failures are not cached.
#[derive(Debug)]
pub(crate) enum MetadataCache<K, V> {
    /// The design for production.
    Sharded(ShardedCache<K, V>),
    /// The design to compare with.
    SingleLock(SingleLockCache<K, V>),
}

metrics! {
    /// Counters of a metadata cache. Both designs count in the same way.
    ///
    /// A *release* is the moment when a thread stops using an entry. The thread that made the value releases the entry when
    /// it publishes the value or fails. A thread that found the value, or slept until it was made, releases the entry once
    /// it has the value. So each completed lookup is one release. A lookup that starts over because the maker failed adds
    /// one; a lookup refused with `WouldBlock` adds none.
    ///
    /// A release *wakes* the threads that it makes runnable: those that sleep until this value is made and, in the
    /// single-lock design, those that sleep until any entry is free. If a woken thread wakes the next one, that counts as
    /// another release.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct MetadataCacheCounters {
        /// Lookups that found the value.
        pub hits: u64 = Counter,
        /// Lookups that had to make the value.
        pub misses: u64 = Counter,
        /// Times that a lookup slept until another thread had made the value or an entry was free.
        pub waits: u64 = Counter as joins,
        /// Threads woken by releases. `wakes / releases` is the average for each release.
        pub wakes: u64 = Counter,
        /// The most threads that a single release woke. More than one is a thundering herd.
        pub wakes_max: u64 = Gauge,
        /// Releases.
        pub releases: u64 = Counter,
        /// Values evicted to stay within the budget.
        pub evictions: u64 = Counter,
        /// Locks taken.
        pub lock_acquisitions: u64 = Counter,
        /// The total weight of the values, in bytes.
        pub weight: u64 = Gauge as used_bytes,
        /// The bound of `weight`, in bytes; 0 in the single-lock design, which bounds the number of values.
        pub weight_max: u64 = Gauge as budget_bytes,
    }
}

/// The overhead of an entry in bytes: its key, its slot and its allocations. Without it, an image could fill the
/// memory with blocks of one byte.
pub(crate) const ENTRY_BYTES: usize = 256;

/// A value that a metadata cache can hold.
pub(crate) trait Weight {
    /// The bytes that the value counts for in the budget.
    fn weight(&self) -> usize;

    /// Returns a copy that shares no memory with the value.
    fn deep_copy(&self) -> Self;
}

impl<K: Copy + Eq + Hash, V: Clone + Weight> MetadataCache<K, V> {
    /// Creates a cache for values of `weight_max` bytes in total.
    pub(crate) fn sharded(weight_max: usize) -> Self {
        Self::Sharded(ShardedCache::new(weight_max))
    }

    /// Creates a cache of `entry_count` values behind one lock, the design of the kernel's SquashFS.
    pub(crate) fn single_lock(entry_count: usize) -> Self {
        Self::SingleLock(SingleLockCache::new(entry_count))
    }

    /// Returns the value under `key`, made by `make` on a miss. If another thread is making it, the call waits for that
    /// thread where `blocking` allows it. A value for which `is_enough` is false is replaced; the single-lock design returns it.
    ///
    /// # Errors
    /// The error of `make`; `WouldBlock` if the call would have to wait and `blocking` forbids it.
    pub(crate) fn find_or_make(
        &self,
        key: K,
        blocking: Blocking,
        is_enough: impl Fn(&V) -> bool,
        make: impl FnOnce() -> Result<V>,
    ) -> Result<V> {
        match self {
            Self::Sharded(cache) => cache.find_or_make(key, blocking, is_enough, make),
            Self::SingleLock(cache) => cache.find_or_make(key, blocking, make),
        }
    }

    /// Changes the bound of the total weight, in bytes. Returns whether this design has such a bound.
    pub(crate) fn set_weight_max(&self, weight_max: usize) -> bool {
        match self {
            Self::Sharded(cache) => cache.set_weight_max(weight_max),
            Self::SingleLock(_) => return false,
        }
        true
    }

    /// Removes the values whose keys are `forgotten`, except those that are being made.
    pub(crate) fn forget_all(&self, forgotten: impl Fn(&K) -> bool) {
        match self {
            Self::Sharded(cache) => cache.forget_all(forgotten),
            Self::SingleLock(cache) => cache.forget_all(forgotten),
        }
    }

    pub(crate) fn counters(&self) -> MetadataCacheCounters {
        match self {
            Self::Sharded(cache) => cache.counters(),
            Self::SingleLock(cache) => cache.counters(),
        }
    }
}

#[cfg(test)]
impl Weight for u32 {
    fn weight(&self) -> usize {
        1
    }

    fn deep_copy(&self) -> Self {
        *self
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use floe_image::Error;

    use super::*;

    #[test]
    fn failures_are_not_remembered_by_either() {
        for cache in [MetadataCache::<u32, u32>::sharded(100), MetadataCache::single_lock(2)] {
            assert!(cache.find_or_make(1, Blocking::Allowed, |_| true, || Err(Error::NoMemory)).is_err());
            assert_eq!(cache.find_or_make(1, Blocking::Allowed, |_| true, || Ok(5)).expect("made anew"), 5);
            assert_eq!(
                cache.find_or_make(1, Blocking::Allowed, |_| true, || Err(Error::NoMemory)).expect("remembered"),
                5
            );
            assert_eq!(cache.find_or_make(2, Blocking::Allowed, |_| true, || Ok(6)).expect("made anew"), 6);
            cache.forget_all(|key| *key == 1);
            assert!(cache.find_or_make(1, Blocking::Allowed, |_| true, || Err(Error::NoMemory)).is_err());
            assert!(cache.find_or_make(2, Blocking::Allowed, |_| true, || Err(Error::NoMemory)).is_ok());
            assert_eq!(cache.counters().weight, 1);
        }
    }
}
