//! Arenas, and the runs of pages that they give out.

use std::{
    ops::{Deref, DerefMut},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
};

use crate::{
    memory::{
        free_pages::FreePages,
        pages_sys::{Mapping, machine_page_bytes},
    },
    sync::Mutex,
};

/// A mapping whose pages are given out in runs.
#[derive(Debug)]
pub(crate) struct Arena {
    mapping: Mapping,
    free: Mutex<FreePages>,
    page_count: usize,
    /// Pages below this one are backed by memory.
    backed_count: AtomicUsize,
    /// Pages from this one on were never given out.
    taken_end: AtomicUsize,
    /// Whether freed pages return to the operating system instead of being reused.
    is_retired: AtomicBool,
}

impl Arena {
    pub(crate) fn new(page_count: usize, populate: bool) -> std::io::Result<Self> {
        Self::on_machine(machine_page_bytes(), page_count, populate)
    }

    /// Creates an arena on a machine with pages of `machine_page_bytes`.
    fn on_machine(machine_page_bytes: usize, page_count: usize, populate: bool) -> std::io::Result<Self> {
        Ok(Self {
            mapping: Mapping::new(page_count, machine_page_bytes, populate)?,
            free: Mutex::new(FreePages::new(page_count)),
            page_count,
            backed_count: AtomicUsize::new(if populate { page_count } else { 0 }),
            taken_end: AtomicUsize::new(0),
            is_retired: AtomicBool::new(false),
        })
    }

    pub(crate) fn lock_in_memory(&self) -> std::io::Result<()> {
        self.mapping.lock()
    }

    pub(crate) fn page_count(&self) -> usize {
        self.page_count
    }

    /// The number of pages given out.
    pub(crate) fn used_count(&self) -> usize {
        self.page_count - self.free.lock().free_count()
    }

    /// How many more pages must be backed so that `ahead_count` pages that were never given out are backed.
    pub(crate) fn missing_backed_count(&self, ahead_count: usize) -> usize {
        let wanted = (self.taken_end.load(Relaxed) + ahead_count).min(self.page_count);
        wanted.saturating_sub(self.backed_count.load(Relaxed))
    }

    /// Backs the next `count` pages that are not backed yet.
    pub(crate) fn back_next(&self, count: usize) {
        let first = self.backed_count.load(Relaxed);
        let end = (first + count).min(self.page_count);
        if first < end {
            self.mapping.populate(first, end - first);
            // Published after the fact: a thread that takes these pages earlier backs them itself, and waits only for
            // that.
            self.backed_count.fetch_max(end, Relaxed);
        }
    }

    /// Returns the memory of free pages to the operating system, now and whenever runs are freed later. No run may be
    /// taken afterwards.
    pub(crate) fn retire(&self) {
        self.is_retired.store(true, Relaxed);
        let free = self.free.lock();
        for (first, count) in free.runs() {
            // The padding in the last machine page belongs to no run.
            let end = if first + count == self.page_count { self.mapping.page_count() } else { first + count };
            self.mapping.discard(first, end - first);
        }
    }

    /// Frees pages. A retired arena returns each machine page without pages in use to the operating system.
    fn release(&self, first_page: usize, page_count: usize) {
        let mut free = self.free.lock();
        free.release(first_page, page_count);
        if !self.is_retired.load(Relaxed) {
            return;
        }
        let step = self.mapping.pages_of_machine_page();
        let end = (first_page + page_count).next_multiple_of(step);
        for machine_page in (first_page - first_page % step..end).step_by(step) {
            let used_end = (machine_page + step).min(self.page_count);
            if free.is_free(machine_page, used_end - machine_page) {
                self.mapping.discard(machine_page, step);
            }
        }
    }

    /// Takes a run of `page_count` pages, or returns `None` if no free run is long enough. The pages contain what their
    /// last user left. They may not be backed by memory until [`PageRun::back`] is called.
    pub(crate) fn take(self: &Arc<Self>, page_count: usize) -> Option<PageRun> {
        let first_page = self.free.lock().take(page_count)?;
        self.taken_end.fetch_max(first_page + page_count, Relaxed);
        Some(PageRun { home: Home::Arena(Arc::clone(self)), first_page, page_count })
    }
}

#[derive(Debug)]
enum Home {
    Arena(Arc<Arena>),
    System(Mapping),
}

/// A run of pages with a single owner. Dropping it returns the pages to the arena or the operating system.
#[derive(Debug)]
pub struct PageRun {
    home: Home,
    first_page: usize,
    page_count: usize,
}

impl PageRun {
    /// Maps pages directly from the operating system; dropping the run unmaps them.
    pub(crate) fn from_system(page_count: usize) -> std::io::Result<Self> {
        Ok(Self {
            home: Home::System(Mapping::new(page_count, machine_page_bytes(), true)?),
            first_page: 0,
            page_count,
        })
    }

    /// Whether all pages are backed by memory.
    pub(crate) fn is_backed(&self) -> bool {
        match &self.home {
            Home::Arena(arena) => self.first_page + self.page_count <= arena.backed_count.load(Relaxed),
            Home::System(_) => true,
        }
    }

    /// Backs all pages with memory.
    pub(crate) fn back(&self) {
        if let Home::Arena(arena) = &self.home {
            let end = self.first_page + self.page_count;
            // Runs are given out from the lowest page on, so all pages below this run are backed or being backed.
            let first = arena.backed_count.fetch_max(end, Relaxed).max(self.first_page);
            if first < end {
                arena.mapping.populate(first, end - first);
            }
        }
    }

    /// Whether the run was mapped directly from the operating system.
    #[cfg(test)]
    pub(crate) fn is_from_system(&self) -> bool {
        matches!(self.home, Home::System(_))
    }

    /// Whether the run may be kept. False if its arena was retired.
    pub(crate) fn may_stay(&self) -> bool {
        match &self.home {
            Home::Arena(arena) => !arena.is_retired.load(Relaxed),
            Home::System(_) => false,
        }
    }

    /// The number of pages in the run.
    pub fn page_count(&self) -> usize {
        self.page_count
    }

    fn mapping(&self) -> &Mapping {
        match &self.home {
            Home::Arena(arena) => &arena.mapping,
            Home::System(mapping) => mapping,
        }
    }

    fn len(&self) -> usize {
        self.page_count * crate::PAGE_BYTES
    }
}

impl Deref for PageRun {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the pages of a run belong to it alone until it is dropped, and `&mut self` is needed to write them.
        unsafe { self.mapping().bytes(self.first_page, self.len()) }
    }
}

impl DerefMut for PageRun {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the pages of a run belong to it alone until it is dropped, and it is borrowed for writing here.
        unsafe { self.mapping().bytes_mut(self.first_page, self.len()) }
    }
}

impl AsRef<[u8]> for PageRun {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for PageRun {
    fn drop(&mut self) {
        if let Home::Arena(arena) = &self.home {
            arena.release(self.first_page, self.page_count);
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use crate::PAGE_BYTES;

    #[test]
    fn a_retired_arena_returns_only_unused_memory() {
        for machine_page_bytes in [4 << 10, 16 << 10, 64 << 10] {
            let page_count = 3 * machine_page_bytes / PAGE_BYTES + 5;
            let arena = Arena::on_machine(machine_page_bytes, page_count, false).map(Arc::new).expect("a small arena");
            // Runs of all lengths, few of which end with a machine page.
            let mut runs: Vec<_> = (1..).map_while(|len| arena.take(len % 4 + 1)).collect();
            runs.extend(std::iter::from_fn(|| arena.take(1)));
            runs.iter_mut().enumerate().for_each(|(mark, run)| run.fill(mark as u8 + 1));
            runs.iter().for_each(PageRun::back);
            let is_intact = |(mark, run): &(usize, PageRun)| run.iter().all(|byte| *byte == *mark as u8 + 1);
            // Some pages are free when the arena retires; the others follow in no particular order.
            let mut runs: Vec<_> = runs.into_iter().enumerate().collect();
            for turn in 0..runs.len() {
                if turn == 2 {
                    arena.retire();
                }
                runs.swap_remove(turn * 7 % runs.len());
                assert!(runs.iter().all(is_intact), "pages of {machine_page_bytes}, after {turn}");
            }
            // SAFETY: nobody uses the arena any more.
            let bytes = unsafe { arena.mapping.bytes(0, page_count * PAGE_BYTES) };
            assert!(bytes.iter().all(|byte| *byte == 0), "all memory of {machine_page_bytes} went back");
        }
    }
}
