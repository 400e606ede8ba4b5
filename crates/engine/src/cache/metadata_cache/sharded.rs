//! The metadata cache for production: many locks, single flight, one wake-up for each release.

use std::{
    hash::{BuildHasher, Hash, RandomState},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

use floe_image::{Error, Result};
use hashbrown::HashTable;

use super::{MetadataCacheCounters, Weight};
use crate::{
    Blocking,
    cache::flight::{Flight, FlightCounters},
    sync::{Mutex, MutexGuard},
};

/// The number of shards, each with its own lock.
const SHARD_COUNT: usize = 64;

/// How many makers in a row may abandon a value before the lookup fails.
const RETRIES_MAX: usize = 16;

/// A metadata cache in shards, each with its own lock. Each value is made once for all concurrent lookups, and no lock
/// is held meanwhile. The end of the making wakes one waiter and each waiter wakes the next, so no release wakes more
/// than one thread. Failures are not cached.
///
/// A hit takes one shard lock, a miss takes two, and each eviction takes one more. Concurrent lookups of one value also
/// share the lock of its flight.
///
/// All shards share one budget. With a budget for each shard, some shards would evict values while others have room.
#[derive(Debug)]
pub(crate) struct ShardedCache<K, V> {
    shards: Vec<Mutex<Shard<K, V>>>,
    hasher: RandomState,
    /// The total weight of the values, including those about to be inserted, in bytes.
    weight: AtomicUsize,
    weight_max: AtomicUsize,
    /// The shard that evicts next.
    dropping: AtomicUsize,
    flights: FlightCounters,
    misses: AtomicU64,
    /// Lookups that waited for another thread to make the value.
    joins: AtomicU64,
    evictions: AtomicU64,
}

#[derive(Debug)]
struct Shard<K, V> {
    slots: HashTable<(K, Slot<V>)>,
    /// Every cached key once, in the order of the hand.
    ring: Vec<K>,
    hand: usize,
    /// Lookups that found the value. A counter of the whole cache would move from CPU to CPU at each hit.
    hits: u64,
}

#[derive(Debug)]
enum Slot<V> {
    Ready { value: V, was_used: bool },
    InFlight(Arc<Flight<V>>),
}

impl<K: Copy + Eq + Hash, V: Clone + Weight> ShardedCache<K, V> {
    /// Creates a cache for values of `weight_max` bytes in total.
    pub(super) fn new(weight_max: usize) -> Self {
        let shard = || Mutex::new(Shard { slots: HashTable::new(), ring: Vec::new(), hand: 0, hits: 0 });
        Self {
            shards: (0..SHARD_COUNT).map(|_| shard()).collect(),
            hasher: RandomState::new(),
            weight: AtomicUsize::new(0),
            weight_max: AtomicUsize::new(weight_max),
            dropping: AtomicUsize::new(0),
            flights: FlightCounters::default(),
            misses: AtomicU64::new(0),
            joins: AtomicU64::new(0),
            evictions: AtomicU64::new(0),
        }
    }

    /// Returns the value under `key`, made by `make` on a miss or if the value there is not enough.
    pub(super) fn find_or_make(
        &self,
        key: K,
        blocking: Blocking,
        is_enough: impl Fn(&V) -> bool,
        make: impl FnOnce() -> Result<V>,
    ) -> Result<V> {
        let mut retries = 0;
        while retries < RETRIES_MAX {
            let flight = match self.find_or_lead(key, &is_enough) {
                Lookup::Ready(value) => return Ok(value),
                Lookup::InFlight(_) if !blocking.is_allowed() => return Err(Error::WouldBlock),
                Lookup::InFlight(flight) => flight,
                Lookup::Lead(lead) => return lead.end(make()),
            };
            let joined = flight.wait(&self.flights);
            self.joins.fetch_add(1, Relaxed);
            match joined {
                // The maker was not allowed to wait for the source. This thread may, so it tries to lead itself.
                Err(Error::WouldBlock) => {}
                Err(Error::Cancelled) => retries += 1,
                Ok(value) if !is_enough(&value) => retries += 1,
                result => return result,
            }
        }
        make()
    }

    /// Removes the values whose keys are `forgotten`, except those that are being made.
    pub(super) fn forget_all(&self, forgotten: impl Fn(&K) -> bool) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            let Shard { slots, ring, .. } = &mut *shard;
            ring.retain(|key| !forgotten(key));
            let is_gone = |(key, slot): &mut (K, Slot<V>)| matches!(slot, Slot::Ready { .. }) && forgotten(key);
            let gone: Vec<_> = slots.extract_if(is_gone).collect();
            drop(shard);
            for (_, slot) in gone {
                let Slot::Ready { value, .. } = slot else { continue };
                self.weight.fetch_sub(value.weight(), Relaxed);
            }
        }
    }

    /// Changes the bound of the total weight, in bytes.
    pub(super) fn set_weight_max(&self, weight_max: usize) {
        self.weight_max.store(weight_max, Relaxed);
        self.keep_budget();
    }

    pub(super) fn counters(&self) -> MetadataCacheCounters {
        let hits = self.shards.iter().map(|shard| shard.lock().hits).sum::<u64>();
        let misses = self.misses.load(Relaxed);
        let (ended, joins) = (self.flights.ended.load(Relaxed), self.joins.load(Relaxed));
        let (waits, wakes) = (self.flights.waits.load(Relaxed), self.flights.wakes.load(Relaxed));
        let evictions = self.evictions.load(Relaxed);
        MetadataCacheCounters {
            hits,
            misses,
            waits,
            wakes,
            // A flight wakes one thread at a time.
            wakes_max: wakes.min(1),
            releases: hits + ended + joins,
            evictions,
            // Shard locks to look up, to end and to evict; flight locks to end, to join, and after each sleep.
            lock_acquisitions: (hits + misses + joins + ended + evictions) + (ended + joins + waits),
            weight: self.weight.load(Relaxed) as u64,
            weight_max: self.weight_max.load(Relaxed) as u64,
        }
    }

    /// Inserts a value and evicts others to stay within the budget. A value heavier than the whole budget remains as
    /// the only one.
    fn insert(&self, key: K, value: V) {
        self.weight.fetch_add(value.weight(), Relaxed);
        self.keep_budget();
        let hash = self.hasher.hash_one(key);
        self.shard(hash).insert(key, value, hash, &self.hasher);
    }

    /// Evicts values that were not used lately, shard by shard, until the budget holds or the cache is empty.
    fn keep_budget(&self) {
        let mut empty_count = 0;
        while empty_count < SHARD_COUNT && self.weight.load(Relaxed) > self.weight_max.load(Relaxed) {
            let index = self.dropping.fetch_add(1, Relaxed) % SHARD_COUNT;
            let evicted = self.shards[index].lock().evict(&self.hasher);
            match evicted {
                Some(value) => {
                    self.weight.fetch_sub(value.weight(), Relaxed);
                    self.evictions.fetch_add(1, Relaxed);
                    empty_count = 0;
                }
                None => empty_count += 1,
            }
        }
    }

    fn find_or_lead(&self, key: K, is_enough: impl Fn(&V) -> bool) -> Lookup<'_, K, V> {
        let hash = self.hasher.hash_one(key);
        let mut shard = self.shard(hash);
        let Shard { slots, ring, hits, .. } = &mut *shard;
        match slots.find_mut(hash, |(other, _)| *other == key) {
            Some((_, Slot::Ready { value, was_used })) if is_enough(value) => {
                *was_used = true;
                *hits += 1;
                Lookup::Ready(value.clone())
            }
            Some((_, Slot::InFlight(flight))) => Lookup::InFlight(Arc::clone(flight)),
            Some((_, slot)) => {
                self.misses.fetch_add(1, Relaxed);
                let flight = Arc::new(Flight::new());
                if let Slot::Ready { value, .. } = std::mem::replace(slot, Slot::InFlight(Arc::clone(&flight))) {
                    self.weight.fetch_sub(value.weight(), Relaxed);
                }
                // The longer value gets a place of its own.
                if let Some(place) = ring.iter().position(|other| *other == key) {
                    ring.swap_remove(place);
                }
                Lookup::Lead(Lead { cache: self, key, flight: Some(flight) })
            }
            None => {
                self.misses.fetch_add(1, Relaxed);
                let flight = Arc::new(Flight::new());
                let slot = Slot::InFlight(Arc::clone(&flight));
                slots.insert_unique(hash, (key, slot), |(key, _)| self.hasher.hash_one(key));
                Lookup::Lead(Lead { cache: self, key, flight: Some(flight) })
            }
        }
    }

    /// Removes the flight of `key` after its maker failed.
    fn forget(&self, key: K) {
        let hash = self.hasher.hash_one(key);
        drop(self.shard(hash).remove(&key, hash));
    }

    /// Locks the shard of the keys with this hash.
    fn shard(&self, hash: u64) -> MutexGuard<'_, Shard<K, V>> {
        // Not the lowest bits: the table of a shard selects its buckets by them.
        let index = (hash >> 32) as usize % SHARD_COUNT;
        self.shards[index].lock()
    }
}

enum Lookup<'cache, K: Copy + Eq + Hash, V: Clone + Weight> {
    Ready(V),
    InFlight(Arc<Flight<V>>),
    Lead(Lead<'cache, K, V>),
}

/// The duty to make a value. Dropping it before the end (a panic) releases the waiters.
struct Lead<'cache, K: Copy + Eq + Hash, V: Clone + Weight> {
    cache: &'cache ShardedCache<K, V>,
    key: K,
    flight: Option<Arc<Flight<V>>>,
}

impl<K: Copy + Eq + Hash, V: Clone + Weight> Lead<'_, K, V> {
    fn end(mut self, result: Result<V>) -> Result<V> {
        self.finish(result.clone());
        result
    }

    fn finish(&mut self, result: Result<V>) {
        let Some(flight) = self.flight.take() else { return };
        match &result {
            Ok(value) => self.cache.insert(self.key, value.clone()),
            Err(_) => self.cache.forget(self.key),
        }
        flight.end(result, &self.cache.flights);
    }
}

impl<K: Copy + Eq + Hash, V: Clone + Weight> Drop for Lead<'_, K, V> {
    fn drop(&mut self) {
        self.finish(Err(Error::Cancelled));
    }
}

impl<K: Copy + Eq + Hash, V: Clone + Weight> Shard<K, V> {
    /// Inserts a value in the place of its flight. `hash` is that of `key`, made by `hasher`.
    fn insert(&mut self, key: K, value: V, hash: u64, hasher: &RandomState) {
        let slot = Slot::Ready { value, was_used: false };
        match self.slots.find_mut(hash, |(other, _)| *other == key) {
            Some((_, flight)) => *flight = slot,
            None => drop(self.slots.insert_unique(hash, (key, slot), |(key, _)| hasher.hash_one(key))),
        }
        self.ring.push(key);
    }

    /// Removes the slot of `key`, whose hash is `hash`.
    fn remove(&mut self, key: &K, hash: u64) -> Option<Slot<V>> {
        let found = self.slots.find_entry(hash, |(other, _)| other == key).ok()?;
        Some(found.remove().0.1)
    }

    /// Evicts a value that was not used lately. `hasher` makes the hashes of keys.
    fn evict(&mut self, hasher: &RandomState) -> Option<V> {
        // Two rounds of the hand, since the first may only clear used marks.
        for _ in 0..2 * self.ring.len() {
            if self.hand >= self.ring.len() {
                self.hand = 0;
            }
            let key = self.ring[self.hand];
            let hash = hasher.hash_one(key);
            match self.slots.find_mut(hash, |(other, _)| *other == key) {
                Some((_, Slot::Ready { was_used, .. })) if *was_used => {
                    *was_used = false;
                    self.hand += 1;
                }
                Some((_, Slot::Ready { .. })) => {
                    self.ring.swap_remove(self.hand);
                    let Some(Slot::Ready { value, .. }) = self.remove(&key, hash) else { return None };
                    return Some(value);
                }
                _ => drop(self.ring.swap_remove(self.hand)),
            }
        }
        None
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use std::{sync::atomic::AtomicUsize, thread, time::Duration};

    use super::*;

    #[test]
    fn a_value_is_made_once_for_all_lookups() {
        let cache = ShardedCache::<u32, u32>::new(64 * 64);
        let made = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| {
                    for key in 0..20 {
                        let value = cache.find_or_make(
                            key,
                            Blocking::Allowed,
                            |_| true,
                            || {
                                made.fetch_add(1, Relaxed);
                                thread::sleep(Duration::from_millis(2));
                                Ok(key * 3)
                            },
                        );
                        assert_eq!(value.expect("made"), key * 3);
                    }
                });
            }
        });
        assert_eq!(made.load(Relaxed), 20);
        let counters = cache.counters();
        assert_eq!(counters.releases, 16 * 20);
        assert!(counters.wakes <= counters.waits, "{counters:?}");
    }

    #[test]
    fn a_value_that_is_not_enough_is_replaced() {
        let cache = ShardedCache::<u32, u32>::new(1000);
        let mut made = 0;
        for wanted in [1, 5, 3, 5, 6, 2] {
            let value = cache.find_or_make(
                7,
                Blocking::Allowed,
                |value| *value >= wanted,
                || {
                    made += 1;
                    Ok(wanted)
                },
            );
            assert!(value.expect("made") >= wanted);
        }
        assert_eq!((made, cache.counters().weight), (3, 1));
    }

    #[test]
    fn a_value_has_one_place_in_the_ring_however_often_it_is_replaced() {
        let cache = ShardedCache::<u32, u32>::new(1000);
        for _ in 0..100 {
            for wanted in [1, 5, 9] {
                let make = || if wanted == 9 { Err(Error::NoMemory) } else { Ok(wanted) };
                let found = cache.find_or_make(7, Blocking::Allowed, |value| *value >= wanted, make);
                assert_eq!(found.is_ok(), wanted < 9);
            }
        }
        let place_count: usize = (0..SHARD_COUNT as u64).map(|shard| cache.shard(shard << 32).ring.len()).sum();
        assert!(place_count <= 1, "{place_count} places");
    }

    #[test]
    fn failures_are_not_remembered_and_the_budget_holds() {
        let cache = ShardedCache::<u32, u32>::new(2 * SHARD_COUNT);
        assert!(cache.find_or_make(1, Blocking::Allowed, |_| true, || Err(Error::NoMemory)).is_err());
        assert_eq!(cache.find_or_make(1, Blocking::Allowed, |_| true, || Ok(5)).expect("made anew"), 5);
        let key_count = if cfg!(miri) { 500 } else { 10_000 };
        for key in 0..key_count {
            cache.find_or_make(key, Blocking::Allowed, |_| true, || Ok(key)).expect("made");
        }
        let kept = (0..key_count)
            .filter(|key| cache.find_or_make(*key, Blocking::Allowed, |_| true, || Err(Error::NoMemory)).is_ok())
            .count();
        assert!(kept <= 2 * SHARD_COUNT, "{kept}");
        assert!(cache.counters().evictions >= u64::from(key_count) - 200);
        cache.set_weight_max(SHARD_COUNT);
        let counters = cache.counters();
        assert!(counters.weight <= counters.weight_max && counters.weight_max == SHARD_COUNT as u64, "{counters:?}");
    }

    #[test]
    fn a_panicking_maker_releases_its_waiters() {
        let cache = Arc::new(ShardedCache::<u32, u32>::new(1000));
        let other = Arc::clone(&cache);
        let (begun, has_begun) = std::sync::mpsc::channel();
        let maker = thread::spawn(move || {
            other.find_or_make(
                1,
                Blocking::Allowed,
                |_| true,
                || {
                    begun.send(()).expect("heard");
                    thread::sleep(Duration::from_millis(20));
                    panic!("on purpose")
                },
            )
        });
        has_begun.recv().expect("begun");
        assert_eq!(cache.find_or_make(1, Blocking::Allowed, |_| true, || Ok(9)).expect("made by the waiter"), 9);
        assert!(maker.join().is_err());
    }
}
