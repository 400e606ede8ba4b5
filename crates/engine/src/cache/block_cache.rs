//! The cache of decoded blocks that reads share.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

use floe_image::{DecodedLen, DeviceId, Encoding, Error, Result, StoredBlock, StoredLen, metrics};

use crate::{
    PAGE_BYTES, PageRun,
    cache::{
        evicted::Evicted,
        flight::{Flight, FlightCounters},
    },
    memory::{
        page_pool::{Effort, PagePool},
        prefetch_budget::Unused,
    },
    sync::{Mutex, MutexGuard},
};

/// The number of shards, each with its own lock.
const SHARD_COUNT: usize = 16;

/// A miss of a block that was evicted too early lets the cache grow by this many times the size of the block, because
/// misses of other blocks evicted at about the same time will follow.
const GROWTH_FACTOR: u64 = 8;

/// The cache of decoded blocks that reads share, within a budget of bytes.
///
/// Each shard evicts with a clock: blocks that were not used since the hand last passed them go first. A lookup that
/// misses leads the decode of its block; concurrent lookups of the same block join that decode.
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

/// The number of further requests for a part of a file after which it is pushed into the kernel's page cache again. So
/// many requests show that the kernel has dropped it.
const PUSHED_AGAIN_REQUESTS: u64 = 8;

/// The bits of [`CachedBlock::pushed`] that count requests.
const PUSHES_MASK: u64 = 0xf;

/// A decoded block.
#[derive(Debug)]
pub(crate) struct CachedBlock {
    pages: PageRun,
    len: usize,
    /// Whether these bytes are the whole block, not just a prefix of it.
    is_complete: bool,
    was_used: AtomicBool,
    /// Set if the block was prefetched.
    ahead: OnceLock<Arc<Unused>>,
    /// Alive while the block waits to be pushed into the kernel's page cache.
    held: Mutex<Weak<Unused>>,
    /// A hash of the part of a file that was pushed into the kernel's page cache last, and the number of requests for it since.
    pushed: AtomicU64,
}

impl CachedBlock {
    pub(crate) fn new(pages: PageRun, len: usize, is_complete: bool) -> Self {
        let (was_used, ahead, held) = (AtomicBool::new(false), OnceLock::new(), Mutex::default());
        Self { pages, len, is_complete, was_used, ahead, held, pushed: AtomicU64::new(0) }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.pages[..self.len]
    }

    /// Marks the block as prefetched. It survives one more round of the hand, because its use is still to come.
    pub(crate) fn mark_ahead(&self, unused: Arc<Unused>) {
        let _ = self.ahead.set(unused);
        self.was_used.store(true, Relaxed);
    }

    /// Holds the block with a claim on the prefetch budget, which counts once for all concurrent holders. Returns the
    /// existing claim, or the one that `claim` makes.
    pub(crate) fn hold(&self, claim: impl FnOnce() -> Option<Arc<Unused>>) -> Option<Arc<Unused>> {
        let mut held = self.held.lock();
        if let Some(unused) = held.upgrade() {
            return Some(unused);
        }
        claim().inspect(|unused| *held = Arc::downgrade(unused))
    }

    /// Notes a request to push a part of a file, which is in this block, into the kernel's page cache. Returns whether
    /// to push it now: `false` if it is the part that was pushed last, unless requests for it continue.
    pub(crate) fn note_push(&self, part_hash: u64) -> bool {
        let seen = self.pushed.load(Relaxed);
        let is_same = seen & !PUSHES_MASK == part_hash & !PUSHES_MASK && seen & PUSHES_MASK != 0;
        let count = if is_same { (seen & PUSHES_MASK) % PUSHED_AGAIN_REQUESTS + 1 } else { 1 };
        self.pushed.store(part_hash & !PUSHES_MASK | count, Relaxed);
        count == 1
    }

    /// Notes that the push of the part of a file failed.
    pub(crate) fn forget_push(&self) {
        self.pushed.store(0, Relaxed);
    }

    /// Makes the block an early candidate for eviction, because its reader has consumed all of it.
    pub(crate) fn mark_consumed(&self) {
        self.was_used.store(false, Relaxed);
    }

    /// Whether these bytes are the whole block, not just a prefix of it.
    pub(crate) fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Whether these bytes satisfy a request for `decoded_len`.
    pub(crate) fn serves(&self, decoded_len: DecodedLen) -> bool {
        serves(self.len, self.is_complete, decoded_len)
    }
}

/// Whether `len` bytes satisfy a request for `wanted`; `is_complete` says that they are the whole block.
pub(crate) fn serves(len: usize, is_complete: bool, wanted: DecodedLen) -> bool {
    match wanted {
        DecodedLen::Exact(wanted) => len == wanted as usize,
        DecodedLen::AtLeast(wanted) => len >= wanted as usize,
        DecodedLen::AtMost(wanted) => is_complete && len <= wanted as usize,
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
    flight: Arc<Flight<Arc<CachedBlock>>>,
}

impl Lead {
    /// Ends the decode and hands the result to the waiters. A block in pages of the cache is also cached; a block in
    /// other pages and a failure are not.
    pub(crate) fn end(self, result: Result<Arc<CachedBlock>>) {
        self.cache.end(self.key, &self.flight, result);
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        if !self.flight.has_ended() {
            self.cache.end(self.key, &self.flight, Err(Error::Cancelled));
        }
    }
}

/// The identity of a block: all of a [`StoredBlock`] but the decoded length, which its users may know in part only.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Key {
    device: DeviceId,
    offset: u64,
    stored_len: StoredLen,
    encoding: Encoding,
}

impl Key {
    pub(crate) fn of(block: &StoredBlock) -> Self {
        let StoredBlock { device, offset, stored_len, encoding, .. } = *block;
        Self { device, offset, stored_len, encoding }
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
    Ready(Arc<CachedBlock>),
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
        };
        cache.set_growth(growth_bytes);
        cache
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
    pub(crate) fn contains(&self, block: &StoredBlock) -> bool {
        match self.shard(&Key::of(block)).slots.get(&Key::of(block)) {
            Some(Slot::Ready(cached)) => cached.serves(block.decoded_len),
            Some(Slot::InFlight(_)) => true,
            None => false,
        }
    }

    /// Returns the block if it is cached.
    pub(crate) fn peek(&self, block: &StoredBlock) -> Option<Arc<CachedBlock>> {
        match self.shard(&Key::of(block)).slots.get(&Key::of(block)) {
            Some(Slot::Ready(cached)) if cached.serves(block.decoded_len) => {
                self.note_hit(cached);
                Some(Arc::clone(cached))
            }
            _ => None,
        }
    }

    /// Returns the block if it is cached, for a reader that consumes all of it. The block becomes an early candidate
    /// for eviction, because such a reader has no reason to come back.
    pub(crate) fn peek_whole(&self, block: &StoredBlock) -> Option<Arc<CachedBlock>> {
        let cached = self.peek(block)?;
        cached.mark_consumed();
        Some(cached)
    }

    /// Looks up the block: cached, in flight, or the duty to decode it.
    pub(crate) fn find_or_lead(self: &Arc<Self>, block: &StoredBlock) -> BlockLookup {
        let key = Key::of(block);
        let mut shard = self.shard(&key);
        match shard.slots.get(&key) {
            Some(Slot::Ready(cached)) if cached.serves(block.decoded_len) => {
                self.note_hit(cached);
                return BlockLookup::Ready(Arc::clone(cached));
            }
            // A flight for another length may yield too few bytes; the reader that joined it then decodes the block
            // itself.
            Some(Slot::InFlight(flight)) => {
                self.joins.fetch_add(1, Relaxed);
                return BlockLookup::InFlight(Arc::clone(flight));
            }
            Some(Slot::Ready(_)) => shard.remove(&key),
            None => {}
        }
        self.misses.fetch_add(1, Relaxed);
        if self.may_grow() && self.evicted().take(self.hasher.hash_one(key)) {
            self.wanted_bytes.fetch_add(GROWTH_FACTOR * u64::from(block.decoded_len.bytes()), Relaxed);
        }
        let flight = Arc::new(Flight::new());
        shard.slots.insert(key, Slot::InFlight(Arc::clone(&flight)));
        BlockLookup::Lead(Lead { cache: Arc::clone(self), key, flight })
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
        cached.was_used.store(true, Relaxed);
        self.hits.fetch_add(1, Relaxed);
        if let Some(unused) = cached.ahead.get() {
            unused.note_used();
        }
    }

    fn end(&self, key: Key, flight: &Flight<Arc<CachedBlock>>, result: Result<Arc<CachedBlock>>) {
        let mut shard = self.shard(&key);
        match &result {
            // If the cache was resized during the decode, these pages belong to the previous arena and to no budget.
            Ok(cached) if cached.pages.may_stay() => {
                shard.slots.insert(key, Slot::Ready(Arc::clone(cached)));
                shard.ring.push(key);
            }
            _ => drop(shard.slots.remove(&key)),
        }
        drop(shard);
        flight.end(result, &self.flights);
    }

    /// Allocates cache pages for a block of `len` decoded bytes, and evicts blocks that were not used lately to make
    /// room. Returns `None` if the budget cannot hold the block, or if memory is short and `effort` does not justify
    /// waiting.
    pub(crate) fn make_room(&self, pool: &PagePool, len: usize, effort: Effort) -> Option<PageRun> {
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
            if gives_up || !self.drop_one(&mut idle_shards) {
                return None;
            }
        }
    }

    /// Adopts the pool's current cache size and evicts blocks until they fit.
    pub(crate) fn keep_budget(&self, pool: &PagePool) {
        self.block_bytes_max.store(pool.cache_bytes() / 2, Relaxed);
        let mut idle_shards = 0;
        while pool.is_cache_too_full() && self.drop_one(&mut idle_shards) {}
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
    /// shards without one.
    fn drop_one(&self, idle_shards: &mut usize) -> bool {
        // Two rounds of the hands, since the first may only clear used marks.
        while *idle_shards < 2 * SHARD_COUNT {
            let index = self.next_shard.fetch_add(1, Relaxed) % SHARD_COUNT;
            let dropped = self.lock(index).evict();
            match dropped {
                Some((key, block)) => {
                    self.evictions.fetch_add(1, Relaxed);
                    if self.may_grow() {
                        self.evicted().note(self.hasher.hash_one(key), block.len as u64);
                    }
                    *idle_shards = 0;
                    return true;
                }
                None => *idle_shards += 1,
            }
        }
        false
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

impl Shard {
    /// Moves the hand once around at most, and evicts the first block that was not used since the hand last passed it.
    fn evict(&mut self) -> Option<(Key, Arc<CachedBlock>)> {
        for _ in 0..self.ring.len() {
            if self.hand >= self.ring.len() {
                self.hand = 0;
            }
            let key = self.ring[self.hand];
            match self.slots.get(&key) {
                Some(Slot::Ready(block)) if block.was_used.swap(false, Relaxed) => self.hand += 1,
                Some(Slot::Ready(_)) => {
                    self.ring.swap_remove(self.hand);
                    let Some(Slot::Ready(block)) = self.slots.remove(&key) else { return None };
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
            if matches!(self.slots.get(&key), Some(Slot::Ready(_)))
                && let Some(Slot::Ready(block)) = self.slots.remove(&key)
            {
                return Some(block);
            }
        }
    }

    fn remove(&mut self, key: &Key) {
        self.slots.remove(key);
        self.ring.retain(|cached| cached != key);
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
