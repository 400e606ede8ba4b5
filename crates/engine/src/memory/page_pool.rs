//! Where the read path gets its pages.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use crate::{
    PAGE_BYTES, PageRun, Stage,
    memory::{arenas::Arenas, page_run_sys::Arena, preemption_sys::preemption_count, pressure::MemoryPressure},
    metrics::latency::Latencies,
};

/// The operating system is short of memory when it takes so long for a page. A virtual machine that has to get the page
/// from its host may need 40 µs for it; one that has to reclaim it first needs many times that.
const SLOW_PAGE: Duration = Duration::from_micros(60);

/// Nor is it short of memory when it was quicker than this in all.
const SLOW_MIN: Duration = Duration::from_micros(500);

/// The operating system is asked for so many pages at a time ahead of the block cache's growth, so that the thread
/// that does it is soon free for other work.
const AHEAD_STEP_PAGES: usize = 32;

/// Where the read path gets its pages: short-lived ones from a reserve that is mapped, touched and, where allowed,
/// locked beforehand; those of the block cache from an arena as large as its budget, whose pages stay once they were
/// touched. While that arena fills, half as many pages as are reserved are touched ahead of what is taken, so that no
/// read waits for those either.
///
/// When the reserve is used up, short-lived pages come from the operating system and go back to it: that is what
/// every decode does when nothing is reserved. How long the operating system takes for pages is measured, and so it
/// is known when memory is short.
pub(crate) struct PagePool {
    reserve: Arenas,
    cache: Arenas,
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

/// What a page pool has done so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PagePoolCounters {
    /// Pages held in reserve.
    pub reserved_pages: u64,
    /// Whether the reserve is locked in memory.
    pub locked: bool,
    /// Runs taken from the reserve.
    pub taken: u64,
    /// Runs for which the reserve had no room, so that they came from the operating system.
    pub missed: u64,
    /// Runs for which the operating system, short of memory, let a thread wait.
    pub waited: u64,
    /// Runs that were only wanted if they cost no waiting, and would have.
    pub given_up: u64,
    /// The most reserved pages in use at one time.
    pub high_water_pages: u64,
    /// Reserved pages in use now.
    pub used_pages: u64,
    /// Pages of the block cache in use now.
    pub cache_pages: u64,
    /// Pages that the block cache may use.
    pub cache_pages_max: u64,
    /// Pages that the operating system gave for the block cache before a read wanted them, while reads went on.
    pub ahead_pages: u64,
    /// How long it took for those, in nanoseconds; no read waited for it.
    pub ahead_ns: u64,
}

/// Whether pages are worth waiting for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Effort {
    /// Somebody waits for what is put into them.
    Demand,
    /// They are taken only if no reclaim has to be waited for.
    BestEffort,
}

impl PagePool {
    /// A pool with a reserve of `reserved_pages` and an arena of `cache_bytes` for cached blocks.
    ///
    /// # Errors
    /// The operating system has not so much memory to give.
    pub(crate) fn new(reserved_pages: usize, cache_bytes: u64, latencies: Arc<Latencies>) -> io::Result<Self> {
        let reserve = Arenas::new(reserve_of(reserved_pages)?);
        let is_locked = reserve.is_locked_in_memory();
        Ok(Self {
            reserve,
            cache: Arenas::new(cache_of(cache_bytes, reserved_pages / 2)?),
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

    /// Holds so many pages in reserve from now on.
    ///
    /// # Errors
    /// The operating system has not so much memory to give; all stays as it was.
    pub(crate) fn set_reserved_pages(&self, reserved_pages: usize) -> io::Result<()> {
        self.reserve.replace(reserve_of(reserved_pages)?);
        self.is_locked.store(self.reserve.is_locked_in_memory(), Relaxed);
        Ok(())
    }

    /// Lets cached blocks take so many bytes from now on. Those that are too many are still there.
    ///
    /// # Errors
    /// The operating system has not so many addresses to give; all stays as it was.
    pub(crate) fn set_cache_bytes(&self, cache_bytes: u64) -> io::Result<()> {
        self.cache.replace(cache_of(cache_bytes, self.ahead_count())?);
        Ok(())
    }

    /// Whether cached blocks take more than they may.
    pub(crate) fn is_cache_too_full(&self) -> bool {
        self.cache.used_count() > self.cache.page_count()
    }

    /// At least `len` bytes for a short time: from the reserve, or else from the operating system. `None` where neither
    /// has room, or where the effort is not worth it.
    pub(crate) fn temporary(&self, len: usize, effort: Effort) -> Option<PageRun> {
        let page_count = page_count(len);
        // Half of the reserve is for those who are waited for.
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

    /// At least `len` bytes from the operating system, whatever is in reserve.
    pub(crate) fn unreserved(&self, len: usize) -> Option<PageRun> {
        let page_count = page_count(len);
        self.missed.fetch_add(1, Relaxed);
        self.time_pages(page_count, || PageRun::from_system(page_count)).ok()
    }

    /// At least `len` bytes for a block that stays in the cache, or `None` where the cache must first let go of others,
    /// or where the effort is not worth it.
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

    /// Whether the block cache has taken so many of the pages that were touched ahead of it that more are to be, and
    /// nobody sees to it. Who is told so is to call [`PagePool::back_ahead`], where waiting does no harm.
    pub(crate) fn wants_backing_ahead(&self) -> bool {
        let ahead_count = self.ahead_count();
        if ahead_count == 0 || self.is_backing_ahead.load(Relaxed) {
            return false;
        }
        let lacks = self.cache.current().is_some_and(|arena| arena.lacks_backed(ahead_count) > ahead_count / 2);
        lacks && !self.is_backing_ahead.swap(true, Relaxed)
    }

    /// Has the operating system give memory for pages that the block cache will take next.
    pub(crate) fn back_ahead(&self) {
        while let Some(arena) = self.cache.current() {
            let count = arena.lacks_backed(self.ahead_count()).min(AHEAD_STEP_PAGES);
            if count == 0 {
                break;
            }
            let latency = self.watch_pages(count, || arena.back_next(count)).1;
            self.ahead_pages.fetch_add(count as u64, Relaxed);
            self.ahead_ns.fetch_add(latency.as_nanos() as u64, Relaxed);
        }
        self.is_backing_ahead.store(false, Relaxed);
    }

    /// Whether the operating system is short of memory, or was a moment ago.
    pub(crate) fn is_memory_short(&self) -> bool {
        self.pressure.is_short()
    }

    /// The number of bytes that cached blocks may take.
    pub(crate) fn cache_bytes(&self) -> usize {
        self.cache.page_count() * PAGE_BYTES
    }

    /// What the pool has done so far.
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

    /// How many pages of the block cache are to be touched ahead of what is taken.
    fn ahead_count(&self) -> usize {
        self.reserve.page_count() / 2
    }

    /// Runs `work`, which gets pages from the operating system for a read that waits, and notes how long that took.
    fn time_pages<R>(&self, page_count: usize, work: impl FnOnce() -> R) -> R {
        let (result, latency) = self.watch_pages(page_count, work);
        self.latencies.record(Stage::Pages, latency);
        result
    }

    /// Runs `work`, which gets pages from the operating system, and heeds how long that took.
    fn watch_pages<R>(&self, page_count: usize, work: impl FnOnce() -> R) -> (R, Duration) {
        let preemptions = preemption_count();
        let started = Instant::now();
        let result = work();
        let latency = started.elapsed();
        // A thread that had to leave its CPU to another one lost its time to that, not to memory.
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

fn cache_of(bytes: u64, ahead_count: usize) -> io::Result<Option<Arena>> {
    let page_count = usize::try_from(bytes / PAGE_BYTES as u64).map_err(|_| io::ErrorKind::OutOfMemory)?;
    if page_count == 0 {
        return Ok(None);
    }
    let arena = Arena::new(page_count, false)?;
    arena.back_next(ahead_count);
    Ok(Some(arena))
}

/// How many pages a run of `len` bytes takes.
pub(crate) fn page_count(len: usize) -> usize {
    len.div_ceil(PAGE_BYTES).max(1)
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    fn pool(reserved_pages: usize, cache_pages: usize) -> PagePool {
        let pool = PagePool::new(reserved_pages, (cache_pages * PAGE_BYTES) as u64, Arc::new(Latencies::new()));
        // Whatever else runs on the machine.
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
        // A second page, for one is touched ahead.
        let _first = pool.cached(PAGE_BYTES, Effort::Demand).expect("room");
        let backed = pool.cached(PAGE_BYTES, Effort::Demand).expect("room");
        drop(backed);
        while !pool.is_memory_short() {
            pool.time_pages(1, || std::thread::sleep(Duration::from_millis(2)));
        }
        assert!(pool.temporary(PAGE_BYTES, Effort::BestEffort).is_some(), "the reserve costs nothing");
        assert!(pool.temporary(2 * PAGE_BYTES, Effort::BestEffort).is_none(), "half of it is for demand");
        assert!(pool.temporary(3 * PAGE_BYTES, Effort::Demand).is_some());
        assert!(pool.cached(PAGE_BYTES, Effort::BestEffort).is_some(), "that page was used before");
        assert!(pool.cached(2 * PAGE_BYTES, Effort::BestEffort).is_none());
        assert_eq!(pool.counters().given_up, 2);
        std::thread::sleep(crate::memory::pressure::LASTS + Duration::from_millis(10));
        assert!(pool.cached(2 * PAGE_BYTES, Effort::BestEffort).is_some());
    }

    #[test]
    fn the_pages_of_a_cache_that_fills_are_there_before_they_are_wanted() {
        let pool = pool(8, 16);
        let mut kept = Vec::new();
        for _ in 0..16 {
            kept.push(pool.cached(PAGE_BYTES, Effort::Demand).expect("room"));
            if pool.wants_backing_ahead() {
                assert!(!pool.wants_backing_ahead(), "one is told");
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
