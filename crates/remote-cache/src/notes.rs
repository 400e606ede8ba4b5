//! A number for each chunk or section of an object, in memory.

use std::sync::{OnceLock, atomic::AtomicU64};

/// How many notes one page has.
const PAGE_NOTES: u64 = 256;

/// A number for each index, zero at first. Numbers take memory only near indexes that were noted.
#[derive(Debug)]
pub(crate) struct Notes {
    pages: Box<[OnceLock<Page>]>,
}

type Page = Box<[AtomicU64; PAGE_NOTES as usize]>;

impl Notes {
    /// Notes for this many indexes.
    pub(crate) fn new(count: u64) -> Self {
        Self { pages: (0..count.div_ceil(PAGE_NOTES)).map(|_| OnceLock::new()).collect() }
    }

    /// The note of an index, if there is one near it.
    pub(crate) fn known(&self, index: u64) -> Option<&AtomicU64> {
        let page = self.pages.get(usize::try_from(index / PAGE_NOTES).ok()?)?;
        page.get()?.get((index % PAGE_NOTES) as usize)
    }

    /// The note of an index; `None` past the last one.
    pub(crate) fn note(&self, index: u64) -> Option<&AtomicU64> {
        let page = self.pages.get(usize::try_from(index / PAGE_NOTES).ok()?)?;
        page.get_or_init(|| Box::new(std::array::from_fn(|_| AtomicU64::new(0)))).get((index % PAGE_NOTES) as usize)
    }
}
