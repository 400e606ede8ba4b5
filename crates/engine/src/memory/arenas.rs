//! A resizable arena with a limit of pages in use.

use std::sync::{Arc, Weak};

use crate::{PageRun, memory::page_run_sys::Arena, sync::Mutex};

/// An arena that can be resized: a new arena replaces the current one. The former arena is freed with its last run;
/// until then its pages in use count as used. A limit bounds the number of pages in use; it can be raised to the size
/// of the arena.
#[derive(Debug)]
pub(crate) struct Arenas {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    current: Option<Arc<Arena>>,
    former: Vec<Weak<Arena>>,
    /// The number of pages that may be in use.
    limit: usize,
}

impl Arenas {
    /// Starts with `arena`, of which at most `limit` pages may be in use.
    pub(crate) fn new(arena: Option<Arena>, limit: usize) -> Self {
        Self { state: Mutex::new(State { current: arena.map(Arc::new), former: Vec::new(), limit }) }
    }

    /// Takes a run of pages. Returns `None` if no free run is long enough, or if the pages in use, former arenas
    /// included, would exceed the limit.
    pub(crate) fn take(&self, page_count: usize) -> Option<PageRun> {
        let mut state = self.lock();
        let current = Arc::clone(state.current.as_ref()?);
        if state.limit >= current.page_count() && state.former.is_empty() {
            drop(state);
            return current.take(page_count);
        }
        // The lock is held until the pages are taken. Otherwise, two threads could find room for the same pages.
        let used = state.former_used() + current.used_count();
        if used + page_count > state.limit { None } else { current.take(page_count) }
    }

    /// Replaces the current arena, and sets the number of pages that may be in use.
    pub(crate) fn replace(&self, arena: Option<Arena>, limit: usize) {
        let mut state = self.lock();
        state.limit = limit;
        let former = std::mem::replace(&mut state.current, arena.map(Arc::new));
        if let Some(former) = former {
            former.retire();
            state.former.push(Arc::downgrade(&former));
        }
    }

    /// Raises the number of pages that may be in use by `page_count`, up to the size of the arena. Returns whether it was
    /// raised.
    pub(crate) fn raise_limit(&self, page_count: usize) -> bool {
        let mut state = self.lock();
        let limit = state.current.as_ref().map_or(0, |current| current.page_count().min(state.limit + page_count));
        let is_raised = limit > state.limit;
        state.limit = state.limit.max(limit);
        is_raised
    }

    /// Locks the pages of the current arena in memory. Returns whether the limits of this process allow it.
    pub(crate) fn is_locked_in_memory(&self) -> bool {
        self.lock().current.as_ref().is_some_and(|current| current.lock_in_memory().is_ok())
    }

    /// The current arena.
    pub(crate) fn current(&self) -> Option<Arc<Arena>> {
        self.lock().current.clone()
    }

    /// The number of pages that may be in use.
    pub(crate) fn page_count(&self) -> usize {
        self.lock().limit
    }

    /// The number of pages in use, including those of former arenas.
    pub(crate) fn used_count(&self) -> usize {
        let mut state = self.lock();
        state.former_used() + state.current.as_ref().map_or(0, |current| current.used_count())
    }

    fn lock(&self) -> crate::sync::MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl State {
    fn former_used(&mut self) -> usize {
        let mut used = 0;
        self.former.retain(|arena| {
            let Some(arena) = arena.upgrade() else { return false };
            used += arena.used_count();
            true
        });
        used
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    fn arena(page_count: usize) -> Arena {
        Arena::new(page_count, false).expect("a small arena")
    }

    #[test]
    fn pages_of_a_former_arena_count_until_they_come_back() {
        let arenas = Arenas::new(Some(arena(8)), 8);
        let mut old = arenas.take(6).expect("room");
        old.fill(7);
        arenas.replace(Some(arena(4)), 4);
        assert_eq!((arenas.page_count(), arenas.used_count()), (4, 6));
        assert!(arenas.take(1).is_none(), "the old pages are more than there may be");
        assert!(old.iter().all(|&byte| byte == 7));
        drop(old);
        assert_eq!(arenas.used_count(), 0);
        let all = arenas.take(4).expect("room");
        assert!(arenas.take(1).is_none());
        arenas.replace(None, 0);
        assert!(arenas.take(1).is_none());
        drop(all);
        assert_eq!((arenas.page_count(), arenas.used_count()), (0, 0));
    }

    #[test]
    fn the_limit_can_be_raised_to_the_size_of_the_arena() {
        let arenas = Arenas::new(Some(arena(8)), 3);
        let first = arenas.take(3).expect("room");
        assert!(arenas.take(1).is_none());
        assert!(arenas.raise_limit(2));
        assert_eq!(arenas.page_count(), 5);
        let second = arenas.take(2).expect("room");
        assert!(arenas.take(1).is_none());
        assert!(arenas.raise_limit(100) && !arenas.raise_limit(1), "there are 8 pages");
        assert_eq!((arenas.page_count(), arenas.used_count()), (8, 5));
        arenas.replace(Some(arena(8)), 3);
        drop(first);
        assert!(arenas.take(2).is_none(), "two pages of the former arena are in use");
        drop(second);
        assert!(arenas.take(3).is_some() && !Arenas::new(None, 0).raise_limit(1));
    }
}
