//! An arena that can be resized.

use std::sync::{Arc, PoisonError, Weak};

use crate::{PageRun, memory::page_run_sys::Arena, sync::Mutex};

/// An arena that can be resized: a new arena replaces the current one. The former arena is freed with its last run;
/// until then its pages in use count as used.
#[derive(Debug)]
pub(crate) struct Arenas {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    current: Option<Arc<Arena>>,
    former: Vec<Weak<Arena>>,
}

impl Arenas {
    pub(crate) fn new(arena: Option<Arena>) -> Self {
        Self { state: Mutex::new(State { current: arena.map(Arc::new), former: Vec::new() }) }
    }

    /// Takes a run of pages. Returns `None` if no free run is long enough, or if the pages in use, former arenas
    /// included, would exceed the size of the current arena.
    pub(crate) fn take(&self, page_count: usize) -> Option<PageRun> {
        let mut state = self.lock();
        if !state.former.is_empty() {
            let former = state.former_used();
            let current = state.current.as_ref()?;
            if former + current.used_count() + page_count > current.page_count() {
                return None;
            }
        }
        state.current.as_ref()?.take(page_count)
    }

    /// Replaces the current arena.
    pub(crate) fn replace(&self, arena: Option<Arena>) {
        let mut state = self.lock();
        let former = std::mem::replace(&mut state.current, arena.map(Arc::new));
        if let Some(former) = former {
            former.retire();
            state.former.push(Arc::downgrade(&former));
        }
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
        self.lock().current.as_ref().map_or(0, |current| current.page_count())
    }

    /// The number of pages in use, including those of former arenas.
    pub(crate) fn used_count(&self) -> usize {
        let mut state = self.lock();
        state.former_used() + state.current.as_ref().map_or(0, |current| current.used_count())
    }

    fn lock(&self) -> crate::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
        let arenas = Arenas::new(Some(arena(8)));
        let mut old = arenas.take(6).expect("room");
        old.fill(7);
        arenas.replace(Some(arena(4)));
        assert_eq!((arenas.page_count(), arenas.used_count()), (4, 6));
        assert!(arenas.take(1).is_none(), "the old pages are more than there may be");
        assert!(old.iter().all(|&byte| byte == 7));
        drop(old);
        assert_eq!(arenas.used_count(), 0);
        let all = arenas.take(4).expect("room");
        assert!(arenas.take(1).is_none());
        arenas.replace(None);
        assert!(arenas.take(1).is_none());
        drop(all);
        assert_eq!((arenas.page_count(), arenas.used_count()), (0, 0));
    }
}
