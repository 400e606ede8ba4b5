//! Where the read path gets its pages.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use crate::{PAGE_BYTES, PageRun, page_run_sys::Arena};

/// Where the read path gets its pages: short-lived ones from a reserve that is mapped, touched and, where allowed,
/// locked beforehand; those of the block cache from an arena as large as its budget.
///
/// When the reserve is used up, short-lived pages come from the operating system and go back to it: that is what
/// every decode does when nothing is reserved.
#[derive(Debug)]
pub struct PagePool {
    reserve: Option<Arc<Arena>>,
    cache: Arc<Arena>,
    locked: bool,
    taken: AtomicU64,
    missed: AtomicU64,
    given_up: AtomicU64,
    high_water_pages: AtomicU64,
}

/// What a [`PagePool`] has done so far.
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
    /// Runs that were only wanted if there was room in the reserve, and there was none.
    pub given_up: u64,
    /// The most reserved pages in use at one time.
    pub high_water_pages: u64,
    /// Reserved pages in use now.
    pub used_pages: u64,
    /// Pages of the block cache in use now.
    pub cache_pages: u64,
}

impl PagePool {
    /// A pool with a reserve of `reserved_pages` and an arena of `cache_bytes` for cached blocks.
    ///
    /// # Errors
    /// The operating system has not so much memory to give.
    pub fn new(reserved_pages: usize, cache_bytes: u64) -> io::Result<Self> {
        let cache_pages = usize::try_from(cache_bytes / PAGE_BYTES as u64).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let reserve = match reserved_pages {
            0 => None,
            count => Some(Arc::new(Arena::new(count, true)?)),
        };
        let locked = reserve.as_ref().is_some_and(|reserve| reserve.lock_in_memory().is_ok());
        Ok(Self {
            reserve,
            cache: Arc::new(Arena::new(cache_pages, false)?),
            locked,
            taken: AtomicU64::new(0),
            missed: AtomicU64::new(0),
            given_up: AtomicU64::new(0),
            high_water_pages: AtomicU64::new(0),
        })
    }

    /// At least `len` bytes for a short time, from the reserve or else from the operating system.
    ///
    /// # Errors
    /// Neither has room.
    pub fn temporary(&self, len: usize) -> io::Result<PageRun> {
        let page_count = len.div_ceil(PAGE_BYTES).max(1);
        match self.take_reserved(page_count) {
            Some(run) => Ok(run),
            None => {
                self.missed.fetch_add(1, Relaxed);
                PageRun::from_system(page_count)
            }
        }
    }

    /// At least `len` bytes for a short time, if the reserve has room at once.
    pub fn temporary_if_at_hand(&self, len: usize) -> Option<PageRun> {
        let run = self.take_reserved(len.div_ceil(PAGE_BYTES).max(1));
        if run.is_none() {
            self.given_up.fetch_add(1, Relaxed);
        }
        run
    }

    /// At least `len` bytes for a block that stays in the cache, or `None` where the cache must first let go of others.
    pub fn cached(&self, len: usize) -> Option<PageRun> {
        self.cache.take(len.div_ceil(PAGE_BYTES).max(1))
    }

    /// The number of bytes that cached blocks may take.
    pub fn cache_bytes(&self) -> usize {
        self.cache.page_count() * PAGE_BYTES
    }

    /// What the pool has done so far.
    pub fn counters(&self) -> PagePoolCounters {
        let reserved = self.reserve.as_ref().map_or(0, |reserve| reserve.page_count());
        let free = self.reserve.as_ref().map_or(0, |reserve| reserve.free_count());
        PagePoolCounters {
            reserved_pages: reserved as u64,
            locked: self.locked,
            taken: self.taken.load(Relaxed),
            missed: self.missed.load(Relaxed),
            given_up: self.given_up.load(Relaxed),
            high_water_pages: self.high_water_pages.load(Relaxed),
            used_pages: (reserved - free) as u64,
            cache_pages: (self.cache.page_count() - self.cache.free_count()) as u64,
        }
    }

    fn take_reserved(&self, page_count: usize) -> Option<PageRun> {
        let reserve = self.reserve.as_ref()?;
        let run = reserve.take(page_count)?;
        self.taken.fetch_add(1, Relaxed);
        self.high_water_pages.fetch_max((reserve.page_count() - reserve.free_count()) as u64, Relaxed);
        Some(run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_comes_first_and_the_system_after_it() {
        let pool = PagePool::new(4, 8 * PAGE_BYTES as u64).expect("a small pool");
        let first = pool.temporary(3 * PAGE_BYTES).expect("from the reserve");
        let second = pool.temporary(2 * PAGE_BYTES).expect("from the system");
        assert!(!first.is_from_system() && second.is_from_system());
        assert!(pool.temporary_if_at_hand(2 * PAGE_BYTES).is_none());
        assert!(pool.temporary_if_at_hand(1).is_some());
        drop(first);
        let counters = pool.counters();
        assert_eq!((counters.taken, counters.missed, counters.given_up), (2, 1, 1));
        assert_eq!((counters.high_water_pages, counters.used_pages), (4, 0));
    }

    #[test]
    fn cached_runs_hold_what_was_written() {
        let pool = PagePool::new(0, 4 * PAGE_BYTES as u64).expect("a small pool");
        let mut runs: Vec<_> = (0..4).map(|_| pool.cached(100).expect("room")).collect();
        assert!(pool.cached(1).is_none());
        for (index, run) in runs.iter_mut().enumerate() {
            run.fill(index as u8);
        }
        assert!(runs.iter().enumerate().all(|(index, run)| run.iter().all(|&byte| byte == index as u8)));
        assert_eq!(pool.counters().cache_pages, 4);
    }
}
