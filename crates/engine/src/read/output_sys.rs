//! Pages that several threads fill, each a separate part.

use std::{
    ops::{Deref, DerefMut, Range},
    ptr::NonNull,
    sync::Arc,
};

use crate::PageRun;

/// The output of one read, cut into the parts that its steps fill. A part can be taken out and filled by another thread.
#[derive(Debug)]
pub(crate) struct SplitOutput {
    pages: Arc<SplitPages>,
    /// Each part, in order, and whether it was taken out.
    parts: Vec<(Range<usize>, bool)>,
}

/// A part of an output. Only its owner can access these bytes.
#[derive(Debug)]
pub(crate) struct OutputPart {
    pages: Arc<SplitPages>,
    range: Range<usize>,
}

#[derive(Debug)]
struct SplitPages {
    start: NonNull<u8>,
    /// Keeps the bytes alive. While there are parts, the bytes are accessed only through `start`.
    pages: PageRun,
}

// SAFETY: the bytes belong to this value. They are accessed only through parts that do not overlap and have one owner each.
unsafe impl Send for SplitPages {}
// SAFETY: as above.
unsafe impl Sync for SplitPages {}

impl SplitOutput {
    /// Cuts `pages` into `parts`, which are in order and do not overlap.
    ///
    /// # Panics
    /// The parts overlap or are not in order, or one ends past the end of the pages.
    pub(crate) fn new(mut pages: PageRun, parts: impl Iterator<Item = Range<usize>>) -> Self {
        let parts: Vec<_> = parts.map(|range| (range, false)).collect();
        let mut end = 0;
        for (range, _) in &parts {
            assert!(end <= range.start && range.start <= range.end, "parts are in order and do not overlap");
            end = range.end;
        }
        assert!(end <= pages.len(), "parts lie in their pages");
        Self { pages: Arc::new(SplitPages { start: NonNull::from(&mut *pages).cast(), pages }), parts }
    }

    /// The bytes of a part that was not taken out.
    ///
    /// # Panics
    /// There is no such part, or it was taken out.
    pub(crate) fn part(&mut self, range: Range<usize>) -> &mut [u8] {
        let (range, is_taken) = self.find(&range).clone();
        assert!(!is_taken, "a part is filled by one thread");
        // SAFETY: parts do not overlap, this one was not taken out, and the slice borrows `self`.
        unsafe { self.pages.bytes_mut(&range) }
    }

    /// Takes a part out.
    ///
    /// # Panics
    /// There is no such part, or it was taken out before.
    pub(crate) fn take(&mut self, range: Range<usize>) -> OutputPart {
        let pages = Arc::clone(&self.pages);
        let (range, is_taken) = self.find(&range);
        assert!(!std::mem::replace(is_taken, true), "a part has one owner");
        OutputPart { pages, range: range.clone() }
    }

    /// The pages, once all parts that were taken out have been dropped; `None` before.
    pub(crate) fn into_pages(self) -> Option<PageRun> {
        Arc::try_unwrap(self.pages).ok().map(|split| split.pages)
    }

    fn find(&mut self, range: &Range<usize>) -> &mut (Range<usize>, bool) {
        let index = self.parts.partition_point(|(part, _)| part.start < range.start);
        let part = self.parts.get_mut(index).filter(|(part, _)| part == range);
        part.unwrap_or_else(|| panic!("the output was not cut at {range:?}"))
    }
}

impl SplitPages {
    /// # Safety
    /// `range` is one of the parts, and no other reference to its bytes exists as long as the slice lives.
    #[expect(clippy::mut_from_ref, reason = "parts do not overlap")]
    unsafe fn bytes_mut(&self, range: &Range<usize>) -> &mut [u8] {
        // SAFETY: parts are within the pages, which are writable and initialised. The caller guarantees the rest.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(range.start), range.len()) }
    }
}

impl Deref for OutputPart {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: only this value has the part.
        unsafe { self.pages.bytes_mut(&self.range) }
    }
}

impl DerefMut for OutputPart {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: only this value has the part, and it is borrowed mutably here.
        unsafe { self.pages.bytes_mut(&self.range) }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use std::{panic::catch_unwind, thread};

    use super::*;
    use crate::{
        PAGE_BYTES,
        memory::page_pool::{CacheSize, Effort, PagePool},
        metrics::latency::Latencies,
    };

    #[test]
    fn threads_fill_parts_of_pages_that_change_hands() {
        let size = CacheSize { bytes: 0, growth_bytes: 0 };
        let pool = PagePool::new(3, size, Arc::new(Latencies::new())).expect("a small pool");
        thread::scope(|scope| {
            for mark in 1..4u8 {
                let pool = &pool;
                scope.spawn(move || {
                    for _ in 0..4 {
                        let pages = pool.temporary(2 * PAGE_BYTES, Effort::Demand).expect("pages");
                        let cuts = [0..PAGE_BYTES, PAGE_BYTES..2 * PAGE_BYTES - 1, 2 * PAGE_BYTES - 1..2 * PAGE_BYTES];
                        let mut output = SplitOutput::new(pages, cuts.iter().cloned());
                        output.part(cuts[2].clone()).fill(mark);
                        thread::scope(|scope| {
                            for cut in &cuts[..2] {
                                let mut part = output.take(cut.clone());
                                scope.spawn(move || part.fill(mark));
                            }
                        });
                        let pages = output.into_pages().expect("no part is left");
                        assert!(pages[..2 * PAGE_BYTES].iter().all(|&byte| byte == mark));
                    }
                });
            }
        });
        assert_eq!(pool.counters().used_pages, 0);
    }

    #[test]
    fn a_part_has_one_owner_and_pages_come_back_after_all_of_them() {
        let run = || PageRun::from_system(1).expect("a page");
        let mut output = SplitOutput::new(run(), [0..10, 20..30].into_iter());
        let part = output.take(20..30);
        assert_eq!(output.part(0..10).len(), 10);
        assert!(output.into_pages().is_none());
        drop(part);
        type Refused = fn(PageRun);
        let refused: [Refused; 5] = [
            |pages| drop(SplitOutput::new(pages, [0..10, 9..20].into_iter())),
            |pages| drop(SplitOutput::new(pages, std::iter::once(0..PAGE_BYTES + 1))),
            |pages| drop(SplitOutput::new(pages, std::iter::once(0..10)).take(0..9)),
            |pages| {
                let mut output = SplitOutput::new(pages, std::iter::once(0..10));
                let _first = output.take(0..10);
                output.take(0..10);
            },
            |pages| {
                let mut output = SplitOutput::new(pages, std::iter::once(0..10));
                let _first = output.take(0..10);
                output.part(0..10);
            },
        ];
        for refused in refused {
            let pages = run();
            assert!(catch_unwind(std::panic::AssertUnwindSafe(|| refused(pages))).is_err());
        }
    }
}
