//! Runs of pages that somebody holds.

use std::{
    ops::{Deref, DerefMut},
    sync::{
        Arc, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
};

use crate::{
    memory::{free_pages::FreePages, pages_sys::Mapping},
    sync::Mutex,
};

/// Pages that are mapped once and given out in runs.
#[derive(Debug)]
pub(crate) struct Arena {
    mapping: Mapping,
    free: Mutex<FreePages>,
    page_count: usize,
    /// Pages below this one are backed by memory.
    backed_count: AtomicUsize,
    /// Pages from this one on were never given out.
    taken_end: AtomicUsize,
    /// Whether its pages are given back to the operating system rather than used again.
    is_retired: AtomicBool,
}

impl Arena {
    pub(crate) fn new(page_count: usize, populate: bool) -> std::io::Result<Self> {
        Ok(Self {
            mapping: Mapping::new(page_count, populate)?,
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

    /// How many pages are given out.
    pub(crate) fn used_count(&self) -> usize {
        self.page_count - self.free.lock().unwrap_or_else(PoisonError::into_inner).free_count()
    }

    /// How many pages more are to be backed by memory so that `ahead_count` are which were never given out.
    pub(crate) fn lacks_backed(&self, ahead_count: usize) -> usize {
        let wanted = (self.taken_end.load(Relaxed) + ahead_count).min(self.page_count);
        wanted.saturating_sub(self.backed_count.load(Relaxed))
    }

    /// Has the operating system give memory for the next `count` pages that are not backed yet.
    pub(crate) fn back_next(&self, count: usize) {
        let first = self.backed_count.load(Relaxed);
        let end = (first + count).min(self.page_count);
        if first < end {
            self.mapping.populate(first, end - first);
            // Only now: whoever takes them before backs them for himself, and waits no longer than for that.
            self.backed_count.fetch_max(end, Relaxed);
        }
    }

    /// Gives the memory of free pages back to the operating system, now and as they come back. Nothing is to be taken
    /// from then on.
    pub(crate) fn retire(&self) {
        self.is_retired.store(true, Relaxed);
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.runs().for_each(|(first, count)| self.mapping.discard(first, count));
    }

    /// `page_count` pages in a row, or `None`. They hold what their last user left, and are not all backed by memory
    /// before [`PageRun::back`] was called.
    pub(crate) fn take(self: &Arc<Self>, page_count: usize) -> Option<PageRun> {
        let first_page = self.free.lock().unwrap_or_else(PoisonError::into_inner).take(page_count)?;
        self.taken_end.fetch_max(first_page + page_count, Relaxed);
        Some(PageRun { home: Home::Arena(Arc::clone(self)), first_page, page_count })
    }
}

#[derive(Debug)]
enum Home {
    Arena(Arc<Arena>),
    System(Mapping),
}

/// A run of pages that one holder owns; they go back where they came from when it is dropped.
#[derive(Debug)]
pub struct PageRun {
    home: Home,
    first_page: usize,
    page_count: usize,
}

impl PageRun {
    /// Pages straight from the operating system, given back to it when dropped.
    pub(crate) fn from_system(page_count: usize) -> std::io::Result<Self> {
        Ok(Self { home: Home::System(Mapping::new(page_count, true)?), first_page: 0, page_count })
    }

    /// Whether the operating system has given memory for all of the pages.
    pub(crate) fn is_backed(&self) -> bool {
        match &self.home {
            Home::Arena(arena) => self.first_page + self.page_count <= arena.backed_count.load(Relaxed),
            Home::System(_) => true,
        }
    }

    /// Has the operating system give memory for all of the pages.
    pub(crate) fn back(&self) {
        if let Home::Arena(arena) = &self.home {
            let end = self.first_page + self.page_count;
            // Runs are given out from the lowest page on, so what lies below is backed, or is just being so.
            let first = arena.backed_count.fetch_max(end, Relaxed).max(self.first_page);
            if first < end {
                arena.mapping.populate(first, end - first);
            }
        }
    }

    /// Whether the run came straight from the operating system.
    #[cfg(test)]
    pub(crate) fn is_from_system(&self) -> bool {
        matches!(self.home, Home::System(_))
    }

    /// Whether the run may be kept: not where its pages are to go back to the operating system.
    pub(crate) fn may_stay(&self) -> bool {
        match &self.home {
            Home::Arena(arena) => !arena.is_retired.load(Relaxed),
            Home::System(_) => false,
        }
    }

    /// How many pages the run has.
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
            if arena.is_retired.load(Relaxed) {
                arena.mapping.discard(self.first_page, self.page_count);
            }
            arena.free.lock().unwrap_or_else(PoisonError::into_inner).release(self.first_page, self.page_count);
        }
    }
}
