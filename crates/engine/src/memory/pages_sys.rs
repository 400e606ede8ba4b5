//! Anonymous memory of the operating system, in whole pages.

use std::{io, ops::Range, ptr::NonNull};

#[cfg(miri)]
use self::interpreted::{Advice, MapFlags, MlockFlags, ProtFlags, madvise, mlock_with, mmap_anonymous, munmap};
#[cfg(not(miri))]
use rustix::mm::{Advice, MapFlags, MlockFlags, ProtFlags, madvise, mlock_with, mmap_anonymous, munmap};

/// The unit of the page pool in bytes. The machine's pages are this size or a multiple of it (4, 16 or 64 KiB).
pub const PAGE_BYTES: usize = 4096;

/// The size of the machine's pages in bytes: the unit of the kernel's page cache and of madvise(2).
pub fn machine_page_bytes() -> usize {
    #[cfg(miri)]
    return PAGE_BYTES;
    #[cfg(not(miri))]
    rustix::param::page_size().max(PAGE_BYTES)
}

/// A private anonymous mapping, unmapped when dropped. Its pages are zero until written.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
    machine_page_bytes: usize,
}

// SAFETY: the mapping belongs to this value alone; access to its bytes goes through `bytes` and `bytes_mut`, whose
// callers promise that no two overlap.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `page_count` pages, rounded up to whole machine pages. With `populate`, all of them are backed by memory
    /// when this returns.
    pub(crate) fn new(page_count: usize, machine_page_bytes: usize, populate: bool) -> io::Result<Self> {
        let len = page_count.max(1).checked_mul(PAGE_BYTES);
        let len = len.and_then(|len| len.checked_next_multiple_of(machine_page_bytes));
        let len = len.ok_or(io::ErrorKind::OutOfMemory)?;
        let flags =
            if populate { MapFlags::PRIVATE | MapFlags::POPULATE } else { MapFlags::PRIVATE | MapFlags::NORESERVE };
        // SAFETY: a new anonymous mapping at an address that the kernel chooses touches no existing memory.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags)? };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, len, machine_page_bytes })
    }

    /// Locks all pages in memory, if the limits of this process allow it.
    pub(crate) fn lock(&self) -> io::Result<()> {
        // SAFETY: the range is this mapping.
        unsafe { mlock_with(self.start.as_ptr().cast(), self.len, MlockFlags::empty()) }.map_err(io::Error::from)
    }

    /// Backs pages with memory now instead of at their first use, and with them the rest of their machine pages. Does
    /// nothing on kernels without `MADV_POPULATE_WRITE` (before 5.14).
    pub(crate) fn populate(&self, first_page: usize, page_count: usize) {
        let start = self.offset_of(first_page, page_count * PAGE_BYTES);
        let end = start + page_count * PAGE_BYTES;
        let start = start - start % self.machine_page_bytes;
        self.advise(start..end.next_multiple_of(self.machine_page_bytes), Advice::LinuxPopulateWrite);
    }

    /// Returns the memory of unused pages to the operating system; they read as zeros afterwards. Machine pages that
    /// this range covers only in part stay.
    pub(crate) fn discard(&self, first_page: usize, page_count: usize) {
        let start = self.offset_of(first_page, page_count * PAGE_BYTES);
        let end = start + page_count * PAGE_BYTES;
        let start = start.next_multiple_of(self.machine_page_bytes);
        self.advise(start..end - end % self.machine_page_bytes, Advice::LinuxDontNeed);
    }

    /// The number of pages in a machine page.
    pub(crate) fn pages_of_machine_page(&self) -> usize {
        self.machine_page_bytes / PAGE_BYTES
    }

    /// The number of mapped pages, including the padding of the last machine page.
    pub(crate) fn page_count(&self) -> usize {
        self.len / PAGE_BYTES
    }

    /// Advises the kernel on whole machine pages. Callers discard only pages that nobody uses.
    fn advise(&self, bytes: Range<usize>, advice: Advice) {
        if bytes.is_empty() {
            return;
        }
        let is_whole = |offset: usize| offset.is_multiple_of(self.machine_page_bytes);
        assert!(is_whole(bytes.start) && is_whole(bytes.end) && bytes.end <= self.len, "advice is on machine pages");
        // SAFETY: the range is inside the mapping. Populating changes no byte, and no slice of a discarded range
        // exists.
        let _ = unsafe { madvise(self.start.as_ptr().add(bytes.start).cast(), bytes.len(), advice) };
    }

    /// Returns `len` bytes from page `first_page` on.
    ///
    /// # Safety
    /// As long as the slice lives, either the caller alone uses these pages or all users only read them.
    pub(crate) unsafe fn bytes(&self, first_page: usize, len: usize) -> &[u8] {
        let offset = self.offset_of(first_page, len);
        // SAFETY: the range is inside the mapping, and mapped pages are initialised. The caller guarantees the rest.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(offset), len) }
    }

    /// Returns `len` bytes from page `first_page` on, for writing.
    ///
    /// # Safety
    /// The caller alone uses these pages as long as the slice lives.
    #[expect(clippy::mut_from_ref, reason = "the caller owns the pages, not the mapping")]
    pub(crate) unsafe fn bytes_mut(&self, first_page: usize, len: usize) -> &mut [u8] {
        let offset = self.offset_of(first_page, len);
        // SAFETY: the range is inside the mapping, and mapped pages are initialised. The caller guarantees the rest.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(offset), len) }
    }

    fn offset_of(&self, first_page: usize, len: usize) -> usize {
        let offset = first_page * PAGE_BYTES;
        assert!(offset <= self.len && len <= self.len - offset, "a run lies in its mapping");
        offset
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is this mapping, and no slice of it outlives the value.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// Replacements for the system calls under Miri: memory of the allocator, so that Miri checks every access to a page.
#[cfg(miri)]
mod interpreted {
    use std::{
        alloc::{Layout, alloc_zeroed, dealloc},
        ffi::c_void,
        io,
    };

    pub(super) use rustix::mm::{Advice, MapFlags, MlockFlags, ProtFlags};

    fn layout(len: usize) -> io::Result<Layout> {
        Layout::from_size_align(len, super::PAGE_BYTES).map_err(|_| io::ErrorKind::OutOfMemory.into())
    }

    pub(super) unsafe fn mmap_anonymous(
        _: *mut c_void,
        len: usize,
        _: ProtFlags,
        _: MapFlags,
    ) -> io::Result<*mut c_void> {
        // SAFETY: a mapping is never empty.
        Ok(unsafe { alloc_zeroed(layout(len)?) }.cast())
    }

    pub(super) unsafe fn munmap(start: *mut c_void, len: usize) -> io::Result<()> {
        // SAFETY: `start` came from `mmap_anonymous` with the same length.
        unsafe { dealloc(start.cast(), layout(len)?) };
        Ok(())
    }

    pub(super) unsafe fn madvise(start: *mut c_void, len: usize, advice: Advice) -> io::Result<()> {
        if advice == Advice::LinuxDontNeed {
            // SAFETY: the caller guarantees that nobody uses these pages.
            unsafe { start.write_bytes(0, len) };
        }
        Ok(())
    }

    pub(super) unsafe fn mlock_with(_: *mut c_void, _: usize, _: MlockFlags) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn advice_covers_only_whole_machine_pages() {
        for machine_page_bytes in [4 << 10, 16 << 10, 64 << 10] {
            let of_machine = machine_page_bytes / PAGE_BYTES;
            let mapping = Mapping::new(3 * of_machine + 1, machine_page_bytes, false).expect("a small mapping");
            assert_eq!(mapping.page_count(), 4 * of_machine.max(1), "{machine_page_bytes}");
            // SAFETY: nothing else uses the mapping while this slice lives.
            unsafe { mapping.bytes_mut(0, mapping.len) }.fill(7);
            // One page more than a machine page on either side.
            let (first, count) = (of_machine.max(2) - 1, of_machine + 2);
            mapping.populate(first, count);
            mapping.discard(first, count);
            // SAFETY: nobody writes.
            let bytes = unsafe { mapping.bytes(0, mapping.len) };
            for (page, bytes) in bytes.chunks(PAGE_BYTES).enumerate() {
                let machine_page = page / of_machine * of_machine;
                let is_gone = machine_page >= first && machine_page + of_machine <= first + count;
                let expected = if is_gone { 0 } else { 7 };
                assert!(bytes.iter().all(|byte| *byte == expected), "page {page} of {machine_page_bytes}");
            }
        }
    }
}
