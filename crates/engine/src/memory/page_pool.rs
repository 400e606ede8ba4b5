//! The page pool: all pages of the read path.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use floe_image::metrics;

use crate::{
    PAGE_BYTES, PageRun, Stage,
    memory::{arenas::Arenas, page_run_sys::Arena, preemption_sys::preemption_count, pressure::MemoryPressure},
    metrics::latency::Latencies,
};

/// Memory is short if the operating system needs more than this for each page. A virtual machine that gets its pages
/// from the host may need 40 µs; reclaim takes many times that.
const SLOW_PAGE: Duration = Duration::from_micros(60);

/// Allocations faster than this in total never count as slow.
const SLOW_MIN: Duration = Duration::from_micros(500);

/// The number of pages that are backed at a time ahead of the block cache's growth. A small step keeps the thread that
/// backs them available for other work.
const AHEAD_STEP_PAGES: usize = 32;

/// The pages of the read path. Short-lived pages come from a reserve that is mapped, touched and, if allowed, locked in
/// advance. Pages of the block cache come from an arena as large as the cache may grow and stay backed once they
/// were touched. While that arena fills, the pool backs pages ahead of the cache (half as many as the reserve has), so
/// that reads do not wait for those either.
///
/// When the reserve is exhausted, short-lived pages come from the operating system and return to it; without a reserve,
/// every decode works like this. The pool measures how long the operating system takes for pages, and thereby detects
/// memory pressure.
pub(crate) struct PagePool {
    reserve: Arenas,
    cache: Arenas,
    has_grown: AtomicBool,
    is_locked: AtomicBool,
    latencies: Arc<Latencies>,
    pressure: MemoryPressure,
    taken: AtomicU64,
    missed: AtomicU64,
    waited: AtomicU64,
    given_up: AtomicU64,
    high_water_pages: AtomicU64,
    is_backing_ahead: AtomicBool,
    ahead_pages: AtomicU64,
    ahead_ns: AtomicU64,
}

metrics! {
    /// Counters of a page pool.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct PagePoolCounters {
        /// Pages held in reserve.
        pub reserved_pages: u64 = Gauge,
        /// Whether the reserve is locked in memory.
        pub locked: bool = Flag as is_locked,
        /// Runs taken from the reserve.
        pub taken: u64 = Counter,
        /// Runs that came from the operating system because the reserve had no room.
        pub missed: u64 = Counter,
        /// Runs for which a thread waited because the operating system was short of memory.
        pub waited: u64 = Counter,
        /// Best-effort runs that were refused because they would have waited for reclaim.
        pub given_up: u64 = Counter,
        /// The most reserved pages in use at one time.
        pub high_water_pages: u64 = Gauge,
        /// Reserved pages in use.
        pub used_pages: u64 = Gauge,
        /// Pages of the block cache in use.
        pub cache_pages: u64 = Gauge,
        /// Pages that the block cache may use.
        pub cache_pages_max: u64 = Gauge,
        /// Pages that were backed for the block cache in the background, before a read needed them.
        pub ahead_pages: u64 = Counter,
        /// The time for backing them, in nanoseconds. No read waited for it.
        pub ahead_ns: u64 = Counter,
    }
}

/// The size of the block cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CacheSize {
    /// Its budget in bytes.
    pub(crate) bytes: u64,
    /// How far it may grow beyond that while memory is ample, in bytes.
    pub(crate) growth_bytes: u64,
}

/// How much waiting a page allocation justifies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Effort {
    /// A read waits for the data that goes into the pages.
    Demand,
    /// The allocation fails if it would wait for reclaim.
    BestEffort,
}

impl PagePool {
    /// Creates a pool with a reserve of `reserved_pages` and an arena for a block cache of this size.
    ///
    /// # Errors
    /// The operating system refuses the memory.
    pub(crate) fn new(reserved_pages: usize, size: CacheSize, latencies: Arc<Latencies>) -> io::Result<Self> {
        let reserve = Arenas::new(reserve_of(reserved_pages)?, reserved_pages);
        let (arena, limit) = cache_of(size, reserved_pages / 2)?;
        let is_locked = reserve.is_locked_in_memory();
        Ok(Self {
            reserve,
            cache: Arenas::new(arena, limit),
            has_grown: AtomicBool::new(false),
            is_locked: AtomicBool::new(is_locked),
            latencies,
            pressure: MemoryPressure::new(),
            taken: AtomicU64::new(0),
            missed: AtomicU64::new(0),
            waited: AtomicU64::new(0),
            given_up: AtomicU64::new(0),
            high_water_pages: AtomicU64::new(0),
            is_backing_ahead: AtomicBool::new(false),
            ahead_pages: AtomicU64::new(0),
            ahead_ns: AtomicU64::new(0),
        })
    }

    /// Changes the size of the reserve.
    ///
    /// # Errors
    /// The operating system refuses the memory; nothing changes.
    pub(crate) fn set_reserved_pages(&self, reserved_pages: usize) -> io::Result<()> {
        self.reserve.replace(reserve_of(reserved_pages)?, reserved_pages);
        self.is_locked.store(self.reserve.is_locked_in_memory(), Relaxed);
        Ok(())
    }

    /// Changes the size of the block cache and undoes its growth. The caller evicts the blocks above the new size;
    /// their memory then returns to the operating system.
    ///
    /// # Errors
    /// The operating system refuses the address space; nothing changes.
    pub(crate) fn set_cache_size(&self, size: CacheSize) -> io::Result<()> {
        let (arena, limit) = cache_of(size, self.ahead_count())?;
        self.has_grown.store(false, Relaxed);
        self.cache.replace(arena, limit);
        Ok(())
    }

    /// Lets the block cache grow by `bytes` if memory is ample. Returns whether it may hold more now.
    pub(crate) fn grow_cache(&self, bytes: u64) -> bool {
        let page_count = page_count(usize::try_from(bytes).unwrap_or(usize::MAX));
        let has_grown = self.pressure.is_ample() && self.cache.raise_limit(page_count);
        if has_grown {
            self.has_grown.store(true, Relaxed);
        }
        has_grown
    }

    /// Whether the block cache may hold more than its budget.
    pub(crate) fn has_grown(&self) -> bool {
        self.has_grown.load(Relaxed)
    }

    /// Whether other processes need the memory that the block cache could free.
    pub(crate) fn is_memory_scarce(&self) -> bool {
        self.pressure.is_scarce()
    }

    /// Whether cached blocks exceed what the cache may hold.
    pub(crate) fn is_cache_too_full(&self) -> bool {
        self.cache.used_count() > self.cache.page_count()
    }

    /// Takes at least `len` bytes for a short time, from the reserve or else from the operating system. Returns `None`
    /// if neither has room, or if a best-effort allocation would wait for reclaim.
    pub(crate) fn temporary(&self, len: usize, effort: Effort) -> Option<PageRun> {
        let page_count = page_count(len);
        // Half of the reserve is kept for demand reads.
        let is_allowed =
            effort == Effort::Demand || 2 * (self.reserve.used_count() + page_count) <= self.reserve.page_count();
        if let Some(run) = is_allowed.then(|| self.take_reserved(page_count)).flatten() {
            return Some(run);
        }
        if effort == Effort::BestEffort && self.is_memory_short() {
            self.given_up.fetch_add(1, Relaxed);
            return None;
        }
        self.unreserved(len)
    }

    /// Takes at least `len` bytes from the operating system, regardless of the reserve.
    pub(crate) fn unreserved(&self, len: usize) -> Option<PageRun> {
        let page_count = page_count(len);
        self.missed.fetch_add(1, Relaxed);
        self.time_pages(page_count, || PageRun::from_system(page_count)).ok()
    }

    /// Takes at least `len` bytes for a block that stays in the cache. Returns `None` if the cache must first evict
    /// blocks, or if a best-effort allocation would wait for reclaim.
    pub(crate) fn cached(&self, len: usize, effort: Effort) -> Option<PageRun> {
        let page_count = page_count(len);
        let run = self.cache.take(page_count)?;
        if !run.is_backed() {
            if effort == Effort::BestEffort && self.is_memory_short() {
                self.given_up.fetch_add(1, Relaxed);
                return None;
            }
            self.time_pages(page_count, || run.back());
        }
        Some(run)
    }

    /// Whether the cache has consumed more than half of the pages that were backed ahead of it, and no thread is
    /// backing more. A caller that gets `true` must call [`PagePool::back_ahead`] on a thread that may wait, or
    /// [`PagePool::leave_unbacked`] if there is none.
    pub(crate) fn wants_backing_ahead(&self) -> bool {
        let ahead_count = self.ahead_count();
        if ahead_count == 0 || self.is_backing_ahead.load(Relaxed) {
            return false;
        }
        let lacks = self.cache.current().is_some_and(|arena| arena.missing_backed_count(ahead_count) > ahead_count / 2);
        lacks && !self.is_backing_ahead.swap(true, Relaxed)
    }

    /// Backs the pages that the block cache will take next.
    pub(crate) fn back_ahead(&self) {
        while let Some(arena) = self.cache.current() {
            let count = arena.missing_backed_count(self.ahead_count()).min(AHEAD_STEP_PAGES);
            if count == 0 {
                break;
            }
            let latency = self.watch_pages(count, || arena.back_next(count)).1;
            self.ahead_pages.fetch_add(count as u64, Relaxed);
            self.ahead_ns.fetch_add(latency.as_nanos() as u64, Relaxed);
        }
        self.leave_unbacked();
    }

    /// Notes that no thread backs the pages that the block cache will take next.
    pub(crate) fn leave_unbacked(&self) {
        self.is_backing_ahead.store(false, Relaxed);
    }

    /// Whether memory is short, or was until a moment ago.
    pub(crate) fn is_memory_short(&self) -> bool {
        self.pressure.is_short()
    }

    /// The current limit of the block cache in bytes.
    pub(crate) fn cache_bytes(&self) -> usize {
        self.cache.page_count() * PAGE_BYTES
    }

    /// Returns the counters of the pool.
    pub(crate) fn counters(&self) -> PagePoolCounters {
        PagePoolCounters {
            reserved_pages: self.reserve.page_count() as u64,
            locked: self.is_locked.load(Relaxed),
            taken: self.taken.load(Relaxed),
            missed: self.missed.load(Relaxed),
            waited: self.waited.load(Relaxed),
            given_up: self.given_up.load(Relaxed),
            high_water_pages: self.high_water_pages.load(Relaxed),
            used_pages: self.reserve.used_count() as u64,
            cache_pages: self.cache.used_count() as u64,
            cache_pages_max: self.cache.page_count() as u64,
            ahead_pages: self.ahead_pages.load(Relaxed),
            ahead_ns: self.ahead_ns.load(Relaxed),
        }
    }

    fn take_reserved(&self, page_count: usize) -> Option<PageRun> {
        let run = self.reserve.take(page_count)?;
        self.taken.fetch_add(1, Relaxed);
        self.high_water_pages.fetch_max(self.reserve.used_count() as u64, Relaxed);
        Some(run)
    }

    /// The number of cache pages to keep backed ahead.
    fn ahead_count(&self) -> usize {
        self.reserve.page_count() / 2
    }

    /// Runs `work`, which gets pages from the operating system for a waiting read, and records its latency.
    fn time_pages<R>(&self, page_count: usize, work: impl FnOnce() -> R) -> R {
        let (result, latency) = self.watch_pages(page_count, work);
        self.latencies.record(Stage::Pages, latency);
        result
    }

    /// Runs `work`, which gets pages from the operating system, and notes memory pressure if it was slow.
    fn watch_pages<R>(&self, page_count: usize, work: impl FnOnce() -> R) -> (R, Duration) {
        let preemptions = preemption_count();
        let started = Instant::now();
        let result = work();
        let latency = started.elapsed();
        // A preempted thread lost its time to another thread, not to a lack of memory.
        if latency > SLOW_MIN.max(SLOW_PAGE * page_count as u32) && preemption_count() == preemptions {
            self.waited.fetch_add(1, Relaxed);
            self.pressure.note();
        }
        (result, latency)
    }
}

fn reserve_of(page_count: usize) -> io::Result<Option<Arena>> {
    if page_count == 0 { Ok(None) } else { Arena::new(page_count, true).map(Some) }
}

/// An arena for a block cache of this size, and how many of its pages may be in use.
fn cache_of(size: CacheSize, ahead_count: usize) -> io::Result<(Option<Arena>, usize)> {
    let pages_in = |bytes: u64| usize::try_from(bytes / PAGE_BYTES as u64).map_err(|_| io::ErrorKind::OutOfMemory);
    let limit = pages_in(size.bytes)?;
    if limit == 0 {
        return Ok((None, 0));
    }
    let grown = pages_in(size.bytes.saturating_add(size.growth_bytes)).map_err(io::Error::from);
    let grown = grown.and_then(|page_count| Arena::new(page_count, false));
    // Growth is only address space until it is used, but that may be limited too.
    let arena = grown.or_else(|_| Arena::new(limit, false))?;
    arena.back_next(ahead_count);
    Ok((Some(arena), limit))
}

/// The number of pages in a run of `len` bytes.
pub(crate) fn page_count(len: usize) -> usize {
    len.div_ceil(PAGE_BYTES).max(1)
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    fn pool(reserved_pages: usize, cache_pages: usize) -> PagePool {
        let size = CacheSize { bytes: (cache_pages * PAGE_BYTES) as u64, growth_bytes: 0 };
        let pool = PagePool::new(reserved_pages, size, Arc::new(Latencies::new()));
        // Independent of the load of the machine.
        PagePool { pressure: MemoryPressure::of(None), ..pool.expect("a small pool") }
    }

    #[test]
    fn the_reserve_comes_first_and_the_system_after_it() {
        let pool = pool(4, 8);
        let first = pool.temporary(3 * PAGE_BYTES, Effort::Demand).expect("from the reserve");
        let second = pool.temporary(2 * PAGE_BYTES, Effort::Demand).expect("from the system");
        assert!(!first.is_from_system() && second.is_from_system());
        assert!(pool.temporary(1, Effort::Demand).is_some());
        drop(first);
        let counters = pool.counters();
        assert_eq!((counters.taken, counters.missed, counters.given_up), (2, 1, 0));
        assert_eq!((counters.high_water_pages, counters.used_pages), (4, 0));
        assert_eq!(pool.latencies.summary(Stage::Pages).count, 1);
    }

    #[test]
    fn only_demand_waits_when_memory_is_short() {
        let pool = pool(2, 8);
        // A second page, since one page is backed ahead.
        let _first = pool.cached(PAGE_BYTES, Effort::Demand).expect("room");
        let backed = pool.cached(PAGE_BYTES, Effort::Demand).expect("room");
        drop(backed);
        while !pool.is_memory_short() {
            pool.time_pages(1, || std::thread::sleep(Duration::from_millis(2)));
        }
        // Independent of the time that the following calls take.
        pool.pressure.set_short(true);
        assert!(pool.temporary(PAGE_BYTES, Effort::BestEffort).is_some(), "the reserve costs nothing");
        assert!(
            pool.temporary(2 * PAGE_BYTES, Effort::BestEffort).is_none(),
            "half of the reserve is for demand reads"
        );
        assert!(pool.temporary(3 * PAGE_BYTES, Effort::Demand).is_some());
        assert!(pool.cached(PAGE_BYTES, Effort::BestEffort).is_some(), "that page was used before");
        assert!(pool.cached(2 * PAGE_BYTES, Effort::BestEffort).is_none());
        assert_eq!(pool.counters().given_up, 2);
        pool.pressure.set_short(false);
        assert!(pool.cached(2 * PAGE_BYTES, Effort::BestEffort).is_some());
    }

    #[test]
    fn pages_of_a_growing_cache_are_backed_ahead_of_reads() {
        let pool = pool(8, 16);
        let mut kept = Vec::new();
        for _ in 0..16 {
            kept.push(pool.cached(PAGE_BYTES, Effort::Demand).expect("room"));
            if pool.wants_backing_ahead() {
                assert!(!pool.wants_backing_ahead(), "only one caller is told");
                pool.back_ahead();
            }
        }
        assert_eq!(pool.latencies.summary(Stage::Pages).count, 0, "nobody waited");
        assert_eq!(pool.counters().ahead_pages, 16 - 4);
        assert!(!pool.wants_backing_ahead());
        let unready = self::pool(0, 4);
        let run = unready.cached(2 * PAGE_BYTES, Effort::Demand).expect("room");
        assert!(run.is_backed() && !unready.wants_backing_ahead());
        assert_eq!(unready.latencies.summary(Stage::Pages).count, 1);
    }

    #[test]
    fn cached_runs_hold_what_was_written() {
        let pool = pool(0, 4);
        let mut runs: Vec<_> = (0..4).map(|_| pool.cached(100, Effort::Demand).expect("room")).collect();
        assert!(pool.cached(1, Effort::Demand).is_none());
        for (index, run) in runs.iter_mut().enumerate() {
            run.fill(index as u8);
        }
        assert!(runs.iter().enumerate().all(|(index, run)| run.iter().all(|&byte| byte == index as u8)));
        assert_eq!(pool.counters().cache_pages, 4);
    }
}
