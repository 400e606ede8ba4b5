//! Pages that several threads fill, each its own part.

use std::{ops::Range, ptr::NonNull};

use crate::PageRun;

/// Pages that several threads fill, each its own part.
pub(crate) struct SharedPages {
    start: NonNull<u8>,
    len: usize,
    /// Keeps the bytes alive; they are only reached through `start`.
    _pages: PageRun,
}

// SAFETY: the bytes are only reached through the two unsafe methods, whose callers promise that nobody writes what
// another one uses, and they belong to this value until it is dropped.
unsafe impl Send for SharedPages {}
// SAFETY: as above.
unsafe impl Sync for SharedPages {}

impl SharedPages {
    pub(crate) fn new(mut pages: PageRun) -> Self {
        let start = NonNull::from(&mut *pages).cast();
        Self { start, len: pages.len(), _pages: pages }
    }

    /// The bytes of `range`, for writing.
    ///
    /// # Safety
    /// As long as the slice lives, no other slice overlaps it.
    #[expect(clippy::mut_from_ref, reason = "the parts are disjoint, as the callers promise")]
    pub(crate) unsafe fn part_mut(&self, range: Range<usize>) -> &mut [u8] {
        assert!(range.start <= range.end && range.end <= self.len, "a part lies in its pages");
        // SAFETY: the range is inside the run, whose pages are writable and initialised; the rest the caller promises.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(range.start), range.len()) }
    }

    /// The first `len` bytes.
    ///
    /// # Safety
    /// As long as the slice lives, nobody writes these bytes.
    pub(crate) unsafe fn filled(&self, len: usize) -> &[u8] {
        assert!(len <= self.len, "a part lies in its pages");
        // SAFETY: as above, and the caller promises that nobody writes.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), len) }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use std::{sync::Arc, thread};

    use super::*;
    use crate::{
        PAGE_BYTES,
        latency::Latencies,
        page_pool::{Effort, PagePool},
    };

    #[test]
    fn threads_fill_parts_of_pages_that_change_hands() {
        let pool = PagePool::new(3, 0, Arc::new(Latencies::new())).expect("a small pool");
        thread::scope(|scope| {
            for mark in 1..4u8 {
                let pool = &pool;
                scope.spawn(move || {
                    for _ in 0..4 {
                        let shared = SharedPages::new(pool.temporary(2 * PAGE_BYTES, Effort::Demand).expect("pages"));
                        thread::scope(|scope| {
                            for part in 0..2 {
                                let shared = &shared;
                                scope.spawn(move || {
                                    let range = part * PAGE_BYTES..(part + 1) * PAGE_BYTES;
                                    // SAFETY: the two parts are disjoint, and nothing else is used meanwhile.
                                    unsafe { shared.part_mut(range) }.fill(mark);
                                });
                            }
                        });
                        // SAFETY: the threads that write have ended.
                        let filled = unsafe { shared.filled(2 * PAGE_BYTES) };
                        assert!(filled.iter().all(|&byte| byte == mark));
                    }
                });
            }
        });
        assert_eq!(pool.counters().used_pages, 0);
    }
}
