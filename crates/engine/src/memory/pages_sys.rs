//! Memory from the operating system, as whole pages.

use std::{io, ptr::NonNull};

#[cfg(miri)]
use self::interpreted::{Advice, MapFlags, MlockFlags, ProtFlags, madvise, mlock_with, mmap_anonymous, munmap};
#[cfg(not(miri))]
use rustix::mm::{Advice, MapFlags, MlockFlags, ProtFlags, madvise, mlock_with, mmap_anonymous, munmap};

/// The unit of the page pool in bytes.
pub const PAGE_BYTES: usize = 4096;

/// A private anonymous mapping, unmapped when dropped. Its pages are zero until they are written.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to this value alone; access to its bytes goes through `bytes` and `bytes_mut`, whose
// callers promise that no two overlap.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `page_count` pages; with `populate` they are all backed by memory before this returns.
    pub(crate) fn new(page_count: usize, populate: bool) -> io::Result<Self> {
        let len = page_count.max(1).checked_mul(PAGE_BYTES).ok_or(io::ErrorKind::OutOfMemory)?;
        let flags =
            if populate { MapFlags::PRIVATE | MapFlags::POPULATE } else { MapFlags::PRIVATE | MapFlags::NORESERVE };
        // SAFETY: a new anonymous mapping at an address that the kernel chooses touches no existing memory.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags)? };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, len })
    }

    /// Keeps all pages in memory, if the limits of this process allow it.
    pub(crate) fn lock(&self) -> io::Result<()> {
        // SAFETY: the range is this mapping.
        unsafe { mlock_with(self.start.as_ptr().cast(), self.len, MlockFlags::empty()) }.map_err(io::Error::from)
    }

    /// Backs pages with memory now rather than at their first use. On kernels that cannot (before 5.14), nothing happens.
    pub(crate) fn populate(&self, first_page: usize, page_count: usize) {
        let len = page_count * PAGE_BYTES;
        let offset = self.offset_of(first_page, len);
        // SAFETY: the range is inside the mapping, and populating it changes no byte.
        let _ = unsafe { madvise(self.start.as_ptr().add(offset).cast(), len, Advice::LinuxPopulateWrite) };
    }

    /// Gives the memory of pages that nobody uses back; they read as zeros from then on.
    pub(crate) fn discard(&self, first_page: usize, page_count: usize) {
        let len = page_count * PAGE_BYTES;
        let offset = self.offset_of(first_page, len);
        // SAFETY: the range is inside the mapping, and the caller says that no slice of it lives.
        let _ = unsafe { madvise(self.start.as_ptr().add(offset).cast(), len, Advice::LinuxDontNeed) };
    }

    /// The `len` bytes from page `first_page` on.
    ///
    /// # Safety
    /// The caller alone uses these pages, or all who use them only read, as long as the slice lives.
    pub(crate) unsafe fn bytes(&self, first_page: usize, len: usize) -> &[u8] {
        let offset = self.offset_of(first_page, len);
        // SAFETY: the range is inside the mapping, and mapped pages are initialised; the rest the caller promises.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(offset), len) }
    }

    /// The `len` bytes from page `first_page` on, for writing.
    ///
    /// # Safety
    /// The caller alone uses these pages as long as the slice lives.
    #[expect(clippy::mut_from_ref, reason = "the caller owns the pages, not the mapping")]
    pub(crate) unsafe fn bytes_mut(&self, first_page: usize, len: usize) -> &mut [u8] {
        let offset = self.offset_of(first_page, len);
        // SAFETY: the range is inside the mapping, and mapped pages are initialised; the rest the caller promises.
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

/// What the interpreter Miri has in the place of the system's calls: memory of the allocator, so that every access to a
/// page is checked.
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
            // SAFETY: the caller says that nobody uses these pages.
            unsafe { start.write_bytes(0, len) };
        }
        Ok(())
    }

    pub(super) unsafe fn mlock_with(_: *mut c_void, _: usize, _: MlockFlags) -> io::Result<()> {
        Ok(())
    }
}
