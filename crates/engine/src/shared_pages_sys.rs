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
