//! Metadata that formats read again and again.

mod sharded;
mod single_lock;

use std::hash::Hash;

use floe_image::Result;

use self::{sharded::ShardedCache, single_lock::SingleLockCache};
use crate::Blocking;

/// Metadata that formats read again and again, in a cache of either design. A value that could not be made is not
/// remembered.
#[derive(Debug)]
pub(crate) enum MetadataCache<K, V> {
    /// For use.
    Sharded(ShardedCache<K, V>),
    /// For comparison.
    SingleLock(SingleLockCache<K, V>),
}

/// What a metadata cache has done so far. All of it is counted in the same way in both designs.
///
/// A *release* is a thread's letting go of an entry that it used: the thread that made the value does so once the value
/// is there for others (or could not be made), one that slept for it or just found it once it has the value. So there is
/// one for each look-up that came to an end, and one more each time that a look-up had to begin anew since another thread
/// failed to make the value, but none for one that was refused as its thread may not wait. A release *wakes* the threads
/// that it makes run: those that slept for this value or, where entries are few, for any entry to come free. Where a woken
/// thread wakes the next one, that is another release.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MetadataCacheCounters {
    /// Look-ups that found the value.
    pub hits: u64,
    /// Look-ups that had to make it.
    pub misses: u64,
    /// Times that a look-up slept, until another thread had made the value or until there was room to make it.
    pub waits: u64,
    /// Threads woken by releases; divided by `releases`, how many each woke on average.
    pub wakes: u64,
    /// The most threads that one release woke: herds, where it is more than one.
    pub wakes_max: u64,
    /// Times that a thread let go of an entry.
    pub releases: u64,
    /// Values dropped for the budget.
    pub evictions: u64,
    /// Locks taken.
    pub lock_acquisitions: u64,
    /// What the values weigh together: bytes.
    pub weight: u64,
    /// What they may weigh together; 0 where not their weight but their number is bounded.
    pub weight_max: u64,
}

/// What a cached value is to the budget, and to who looks it up.
pub(crate) trait Weight {
    /// What it weighs.
    fn weight(&self) -> usize;

    /// A copy that shares no memory with it.
    fn deep_copy(&self) -> Self;
}

impl<K: Copy + Eq + Hash, V: Clone + Weight> MetadataCache<K, V> {
    /// A cache for values of `weight_max` together.
    pub(crate) fn sharded(weight_max: usize) -> Self {
        Self::Sharded(ShardedCache::new(weight_max))
    }

    /// A cache of `entry_count` values behind one lock, as the kernel's SquashFS has it.
    pub(crate) fn single_lock(entry_count: usize) -> Self {
        Self::SingleLock(SingleLockCache::new(entry_count))
    }

    /// The value under `key`; where there is none, `make` makes it.
    /// Where another thread makes it, this one waits for that if `blocking` allows it; so may `make`.
    ///
    /// # Errors
    /// What `make` ended in; it would have to be waited for.
    pub(crate) fn find_or_make(&self, key: K, blocking: Blocking, make: impl FnOnce() -> Result<V>) -> Result<V> {
        match self {
            Self::Sharded(cache) => cache.find_or_make(key, blocking, make),
            Self::SingleLock(cache) => cache.find_or_make(key, blocking, make),
        }
    }

    /// Lets the values have another weight together from now on; gives whether this design bounds their weight.
    pub(crate) fn set_weight_max(&self, weight_max: usize) -> bool {
        match self {
            Self::Sharded(cache) => cache.set_weight_max(weight_max),
            Self::SingleLock(_) => return false,
        }
        true
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
            assert!(cache.find_or_make(1, Blocking::Allowed, || Err(Error::NoMemory)).is_err());
            assert_eq!(cache.find_or_make(1, Blocking::Allowed, || Ok(5)).expect("made anew"), 5);
            assert_eq!(cache.find_or_make(1, Blocking::Allowed, || Err(Error::NoMemory)).expect("remembered"), 5);
        }
    }
}
