//! An allocator that counts.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

/// Allocations of at least so many bytes are large: the C library may get them from the operating system.
pub const LARGE_BYTES: usize = 4096;

/// The system's allocator, with counts of what all threads asked of it. For `#[global_allocator]` in a test.
#[derive(Debug, Default)]
pub struct CountingAllocator {
    small: AtomicU64,
    large: AtomicU64,
    allocated_bytes: AtomicU64,
    freed_bytes: AtomicU64,
}

/// How many allocations there were.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AllocationCounts {
    /// Of less than [`LARGE_BYTES`].
    pub small: u64,
    /// Of as many or more.
    pub large: u64,
}

impl CountingAllocator {
    /// Nothing counted yet.
    pub const fn new() -> Self {
        Self {
            small: AtomicU64::new(0),
            large: AtomicU64::new(0),
            allocated_bytes: AtomicU64::new(0),
            freed_bytes: AtomicU64::new(0),
        }
    }

    /// What all threads asked for so far.
    pub fn counts(&self) -> AllocationCounts {
        AllocationCounts { small: self.small.load(Relaxed), large: self.large.load(Relaxed) }
    }

    /// How many bytes are allocated now.
    pub fn live_bytes(&self) -> u64 {
        self.allocated_bytes.load(Relaxed).saturating_sub(self.freed_bytes.load(Relaxed))
    }

    fn note(&self, len: usize) {
        self.allocated_bytes.fetch_add(len as u64, Relaxed);
        let counter = if len < LARGE_BYTES { &self.small } else { &self.large };
        counter.fetch_add(1, Relaxed);
    }
}

// SAFETY: every call goes to the system's allocator as it is.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.note(layout.size());
        // SAFETY: the caller keeps the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        self.freed_bytes.fetch_add(layout.size() as u64, Relaxed);
        // SAFETY: the caller keeps the contract.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.note(layout.size());
        // SAFETY: the caller keeps the contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        self.note(len);
        self.freed_bytes.fetch_add(layout.size() as u64, Relaxed);
        // SAFETY: the caller keeps the contract.
        unsafe { System.realloc(memory, layout, len) }
    }
}
