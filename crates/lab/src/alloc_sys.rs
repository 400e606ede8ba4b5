//! Anonymous pages, touched or untouched.

use std::io;

/// An anonymous mapping, untouched at first.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: *mut u8,
    size_bytes: usize,
}

impl Mapping {
    /// Maps fresh pages.
    pub(crate) fn new(size_bytes: usize) -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh anonymous mapping overlaps nothing.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), size_bytes, access, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { start: start.cast(), size_bytes })
    }

    /// Writes one byte to each page, which makes the kernel allocate it.
    pub(crate) fn touch(&self, page_bytes: usize) {
        for offset in (0..self.size_bytes).step_by(page_bytes) {
            // SAFETY: the address is within our writable mapping.
            unsafe { self.start.add(offset).write_volatile(1) };
        }
    }

    /// Locks the pages in memory; returns whether that was permitted.
    pub(crate) fn lock(&self) -> bool {
        // SAFETY: the range is that of the mapping.
        unsafe { libc::mlock(self.start.cast(), self.size_bytes) == 0 }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: unmaps what `new` mapped; nothing else refers to it.
        unsafe {
            libc::munmap(self.start.cast(), self.size_bytes);
        }
    }
}
