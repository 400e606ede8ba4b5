//! The cache of decoded blocks that reads share.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

use floe_image::{DecodedLen, Error, Result, StoredBlock, metrics};

use crate::{
    PAGE_BYTES, PageRun,
    cache::{
        block_share::BlockShare,
        cached_block::CachedBlock,
        evicted::Evicted,
        flight::{Flight, FlightCounters},
        key::Key,
    },
    memory::page_pool::{Effort, PagePool},
    sync::{Mutex, MutexGuard},
};

/// The number of shards, each with its own lock.
const SHARD_COUNT: usize = 16;

/// A miss of a block that was evicted too early lets the cache grow by this many times the size of the block, because
/// misses of other blocks evicted at about the same time will follow.
const GROWTH_FACTOR: u64 = 8;

/// The cache of decoded blocks that reads share, within a budget of bytes. Volumes use it through
/// [`VolumeBlocks`](super::volume_blocks::VolumeBlocks).
///
/// Each shard evicts with a clock: blocks that were not used since the hand last passed them go first. A lookup that
/// misses leads the decode of its block; concurrent lookups of the same block join that decode.
///
/// Half of the budget is divided equally among the contents that have blocks in the cache. No content evicts the blocks of
/// another one below that floor.
///
/// A miss of a block that was evicted a short while ago lets the cache grow, up to its limit and while memory is ample.
#[derive(Debug)]
pub(crate) struct BlockCache {
    shards: Vec<Mutex<Shard>>,
    /// Larger blocks are not cached.
    block_bytes_max: AtomicUsize,
    hasher: RandomState,
    next_shard: AtomicUsize,
    /// How far the cache may grow, in bytes.
    growth_bytes: AtomicU64,
    evicted: Mutex<Evicted>,
    /// The bytes by which the cache should grow, because a larger cache would have avoided recent misses.
    wanted_bytes: AtomicU64,
    flights: FlightCounters,
    hits: AtomicU64,
    misses: AtomicU64,
    joins: AtomicU64,
    evictions: AtomicU64,
    /// The number of contents that have blocks in the cache.
    active_count: Arc<AtomicUsize>,
}

metrics! {
    /// Counters of the block cache.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct BlockCacheCounters {
        /// Lookups that found the block.
        pub hits: u64 = Counter,
        /// Lookups that missed and had to decode the block.
        pub misses: u64 = Counter,
        /// Lookups that joined a decode in flight.
        pub joins: u64 = Counter,
        /// Blocks evicted to stay within the budget.
        pub evictions: u64 = Counter,
        /// The size of the cached blocks in bytes.
        pub used_bytes: u64 = Gauge,
        /// The present budget of the cache in bytes: it grows while memory is ample.
        pub budget_bytes: u64 = Gauge,
    }
}

/// The result of a lookup.
pub(crate) enum BlockLookup {
    /// The block.
    Ready(Arc<CachedBlock>),
    /// A decode in flight, to join.
    InFlight(Arc<Flight<Arc<CachedBlock>>>),
    /// A miss: the caller must decode the block.
    Lead(Lead),
}

/// The duty to decode a block for all concurrent lookups (single flight). Dropping it without [`Lead::end`] releases
/// the waiters.
#[derive(Debug)]
pub(crate) struct Lead {
    cache: Arc<BlockCache>,
    key: Key,
    share: Arc<BlockShare>,
    flight: Arc<Flight<Arc<CachedBlock>>>,
}

impl Lead {
    /// Ends the decode and hands the result to the waiters. A block in pages of the cache is also cached; a block in
    /// other pages and a failure are not.
    pub(crate) fn end(self, result: Result<Arc<CachedBlock>>) {
        self.cache.end(self.key, &self.share, &self.flight, result);
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        if !self.flight.has_ended() {
            self.cache.end(self.key, &self.share, &self.flight, Err(Error::Cancelled));
        }
    }
}

#[derive(Debug, Default)]
struct Shard {
    slots: HashMap<Key, Slot>,
    /// Every cached key once, in the order of the hand.
    ring: Vec<Key>,
    hand: usize,
}

#[derive(Debug)]
enum Slot {
    /// A block, and the share that it counts towards.
    Ready(Arc<CachedBlock>, Arc<BlockShare>),
    InFlight(Arc<Flight<Arc<CachedBlock>>>),
}

impl BlockCache {
    /// Creates a cache with the budget that the pool has for it.
    pub(crate) fn new(pool: &PagePool, growth_bytes: u64) -> Self {
        let cache = Self {
            shards: (0..SHARD_COUNT).map(|_| Mutex::default()).collect(),
            block_bytes_max: AtomicUsize::new(pool.cache_bytes() / 2),
            hasher: RandomState::new(),
            next_shard: AtomicUsize::new(0),
            growth_bytes: AtomicU64::new(0),
            evicted: Mutex::default(),
            wanted_bytes: AtomicU64::new(0),
            flights: FlightCounters::default(),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            joins: AtomicU64::new(0),
            evictions: AtomicU64::new(0),
            active_count: Arc::default(),
        };
        cache.set_growth(growth_bytes);
        cache
    }

    /// Adds a share, for the blocks of one content.
    pub(crate) fn share(&self) -> Arc<BlockShare> {
        BlockShare::new(&self.active_count)
    }

    /// Sets how far the cache may grow from now on, in bytes; 0 disables growth.
    pub(crate) fn set_growth(&self, growth_bytes: u64) {
        self.growth_bytes.store(growth_bytes, Relaxed);
        self.wanted_bytes.store(0, Relaxed);
        self.evicted().set_bytes_max(growth_bytes);
    }

    /// Whether the block is small enough to be cached. A block of more than half of the budget would evict nearly all
    /// others.
    pub(crate) fn has_room_for(&self, block: &StoredBlock) -> bool {
        block.decoded_len.bytes() as usize <= self.block_bytes_max.load(Relaxed)
    }

    /// Whether the block is cached or being decoded. Counts neither a hit nor a miss.
    pub(super) fn contains(&self, key: &Key, decoded_len: DecodedLen) -> bool {
        match self.shard(key).slots.get(key) {
            Some(Slot::Ready(cached, _)) => cached.serves(decoded_len),
            Some(Slot::InFlight(_)) => true,
            None => false,
        }
    }

    /// Returns the block if it is cached.
    pub(super) fn peek(&self, key: &Key, decoded_len: DecodedLen) -> Option<Arc<CachedBlock>> {
        match self.shard(key).slots.get(key) {
            Some(Slot::Ready(cached, _)) if cached.serves(decoded_len) => {
                self.note_hit(cached);
                Some(Arc::clone(cached))
            }
            _ => None,
        }
    }

    /// Looks up the block: cached, in flight, or the duty to decode it for `share`.
    pub(super) fn find_or_lead(
        self: &Arc<Self>,
        key: Key,
        decoded_len: DecodedLen,
        share: &Arc<BlockShare>,
    ) -> BlockLookup {
        let mut shard = self.shard(&key);
        match shard.slots.get(&key) {
            Some(Slot::Ready(cached, _)) if cached.serves(decoded_len) => {
                self.note_hit(cached);
                return BlockLookup::Ready(Arc::clone(cached));
            }
            // A flight for another length may yield too few bytes; the reader that joined it then decodes the block
            // itself.
            Some(Slot::InFlight(flight)) => {
                self.joins.fetch_add(1, Relaxed);
                return BlockLookup::InFlight(Arc::clone(flight));
            }
            Some(Slot::Ready(..)) => shard.remove(&key),
            None => {}
        }
        self.misses.fetch_add(1, Relaxed);
        if self.may_grow() && self.evicted().take(self.hasher.hash_one(key)) {
            self.wanted_bytes.fetch_add(GROWTH_FACTOR * u64::from(decoded_len.bytes()), Relaxed);
        }
        let flight = Arc::new(Flight::new());
        shard.slots.insert(key, Slot::InFlight(Arc::clone(&flight)));
        BlockLookup::Lead(Lead { cache: Arc::clone(self), key, share: Arc::clone(share), flight })
    }

    /// Waits for a decode in flight. Returns `None` if its result does not serve `block`: the caller must look it up
    /// again.
    pub(crate) fn join(
        &self,
        flight: &Flight<Arc<CachedBlock>>,
        block: &StoredBlock,
    ) -> Result<Option<Arc<CachedBlock>>> {
        match flight.wait(&self.flights) {
            Ok(cached) if cached.serves(block.decoded_len) => Ok(Some(cached)),
            Ok(_) | Err(Error::Cancelled) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn note_hit(&self, cached: &CachedBlock) {
        cached.note_hit();
        self.hits.fetch_add(1, Relaxed);
    }

    fn end(
        &self,
        key: Key,
        share: &Arc<BlockShare>,
        flight: &Flight<Arc<CachedBlock>>,
        result: Result<Arc<CachedBlock>>,
    ) {
        let mut shard = self.shard(&key);
        match &result {
            // If the cache was resized during the decode, these pages belong to the previous arena and to no budget.
            Ok(cached) if cached.may_stay() => {
                share.add(cached.size());
                shard.slots.insert(key, Slot::Ready(Arc::clone(cached), Arc::clone(share)));
                shard.ring.push(key);
            }
            _ => drop(shard.slots.remove(&key)),
        }
        drop(shard);
        flight.end(result, &self.flights);
    }

    /// Allocates cache pages for a block of `len` decoded bytes of `share`, and evicts blocks that were not used lately to
    /// make room. Returns `None` if the budget cannot hold the block, or if memory is short and `effort` does not justify
    /// waiting.
    pub(super) fn make_room(
        &self,
        share: &Arc<BlockShare>,
        pool: &PagePool,
        len: usize,
        effort: Effort,
    ) -> Option<PageRun> {
        if len > self.block_bytes_max.load(Relaxed) {
            return None;
        }
        let mut idle_shards = 0;
        loop {
            if let Some(pages) = pool.cached(len, effort) {
                return Some(pages);
            }
            let wanted_bytes = self.wanted_bytes.swap(0, Relaxed);
            if wanted_bytes > 0 && pool.grow_cache(wanted_bytes) {
                continue;
            }
            let gives_up = effort == Effort::BestEffort && pool.is_memory_short();
            if gives_up || !self.drop_one(Some(share), &mut idle_shards) {
                return None;
            }
        }
    }

    /// Adopts the pool's current cache size and evicts blocks until they fit.
    pub(crate) fn keep_budget(&self, pool: &PagePool) {
        self.block_bytes_max.store(pool.cache_bytes() / 2, Relaxed);
        let mut idle_shards = 0;
        while pool.is_cache_too_full() && self.drop_one(None, &mut idle_shards) {}
        // Blocks that are used all the time.
        for shard in &self.shards {
            while pool.is_cache_too_full() && self.drop_used(shard) {}
        }
    }

    /// Evicts a block of a shard, however lately it was used; returns whether there was one.
    fn drop_used(&self, shard: &Mutex<Shard>) -> bool {
        let dropped = shard.lock().evict_used();
        self.evictions.fetch_add(u64::from(dropped.is_some()), Relaxed);
        dropped.is_some()
    }

    /// Evicts one block that was not used lately; returns whether there was one. `idle_shards` counts consecutive
    /// shards without one. If the room is for blocks of a share, other shares keep their floor.
    fn drop_one(&self, asker: Option<&Arc<BlockShare>>, idle_shards: &mut usize) -> bool {
        let floor_bytes = self.block_bytes_max.load(Relaxed) as u64 / self.active_count.load(Relaxed).max(1) as u64;
        let floor_of = |owner: &Arc<BlockShare>| match asker {
            Some(asker) if !Arc::ptr_eq(asker, owner) => floor_bytes,
            _ => 0,
        };
        // Two rounds of the hands, since the first may only clear used marks.
        while *idle_shards < 2 * SHARD_COUNT {
            let index = self.next_shard.fetch_add(1, Relaxed) % SHARD_COUNT;
            let dropped = self.lock(index).evict(floor_of);
            match dropped {
                Some((key, block)) => {
                    self.evictions.fetch_add(1, Relaxed);
                    if self.may_grow() {
                        self.evicted().note(self.hasher.hash_one(key), block.bytes().len() as u64);
                    }
                    *idle_shards = 0;
                    return true;
                }
                None => *idle_shards += 1,
            }
        }
        false
    }

    /// Removes the blocks of a volume or content.
    pub(crate) fn forget(&self, owner: u64) {
        for shard in &self.shards {
            let mut forgotten = Vec::new();
            let mut shard = shard.lock();
            let Shard { slots, ring, .. } = &mut *shard;
            let is_forgotten = |key: &Key| key.source().owner() == owner;
            ring.retain(|key| !is_forgotten(key));
            forgotten.extend(slots.extract_if(|key, slot| matches!(slot, Slot::Ready(..)) && is_forgotten(key)));
            drop(shard);
            forgotten.iter().for_each(|(_, slot)| slot.discount());
        }
    }

    /// The counters, with the sizes that the pool knows.
    pub(crate) fn counters(&self, pool: &PagePool) -> BlockCacheCounters {
        let pages = pool.counters();
        BlockCacheCounters {
            hits: self.hits.load(Relaxed),
            misses: self.misses.load(Relaxed),
            joins: self.joins.load(Relaxed),
            evictions: self.evictions.load(Relaxed),
            used_bytes: pages.cache_pages * PAGE_BYTES as u64,
            budget_bytes: pages.cache_pages_max * PAGE_BYTES as u64,
        }
    }

    fn may_grow(&self) -> bool {
        self.growth_bytes.load(Relaxed) > 0
    }

    fn evicted(&self) -> MutexGuard<'_, Evicted> {
        self.evicted.lock()
    }

    fn shard(&self, key: &Key) -> MutexGuard<'_, Shard> {
        self.lock(self.hasher.hash_one(key) as usize % SHARD_COUNT)
    }

    fn lock(&self, index: usize) -> MutexGuard<'_, Shard> {
        self.shards[index].lock()
    }
}

impl Slot {
    /// Takes the block out of its share.
    fn discount(&self) {
        if let Self::Ready(block, share) = self {
            share.remove(block.size(), 0);
        }
    }
}

impl Shard {
    /// Moves the hand once around at most, and evicts the first block that was not used since the hand last passed it, and
    /// whose share keeps its floor (`floor_of`).
    fn evict(&mut self, floor_of: impl Fn(&Arc<BlockShare>) -> u64) -> Option<(Key, Arc<CachedBlock>)> {
        for _ in 0..self.ring.len() {
            if self.hand >= self.ring.len() {
                self.hand = 0;
            }
            let key = self.ring[self.hand];
            match self.slots.get(&key) {
                Some(Slot::Ready(block, _)) if block.take_used_mark() => self.hand += 1,
                Some(Slot::Ready(block, share)) if !share.remove(block.size(), floor_of(share)) => self.hand += 1,
                Some(Slot::Ready(..)) => {
                    self.ring.swap_remove(self.hand);
                    let Some(Slot::Ready(block, _)) = self.slots.remove(&key) else { return None };
                    return Some((key, block));
                }
                _ => drop(self.ring.swap_remove(self.hand)),
            }
        }
        None
    }

    /// Evicts the last block of the ring.
    fn evict_used(&mut self) -> Option<Arc<CachedBlock>> {
        loop {
            let key = self.ring.pop()?;
            if let Some(slot @ Slot::Ready(..)) = self.slots.get(&key) {
                slot.discount();
                if let Some(Slot::Ready(block, _)) = self.slots.remove(&key) {
                    return Some(block);
                }
            }
        }
    }

    fn remove(&mut self, key: &Key) {
        self.slots.remove(key).iter().for_each(Slot::discount);
        self.ring.retain(|cached| cached != key);
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
