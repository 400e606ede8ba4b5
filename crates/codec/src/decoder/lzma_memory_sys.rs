//! An allocator for liblzma that reuses freed memory.

use std::{
    alloc::{Layout, alloc, dealloc},
    ffi::c_void,
    ptr::{self, NonNull},
};

use liblzma_sys::lzma_allocator;

/// Length in bytes of the header that precedes each allocation and holds its size; keeps the alignment.
const HEADER_LEN: usize = 16;
/// The maximum number of freed allocations that are kept.
const KEPT_COUNT_MAX: usize = 16;
/// The maximum size of all kept allocations in bytes: the dictionary of a filter chain that is not in use.
const KEPT_BYTES_MAX: usize = 9 * 1024 * 1024;
/// Allocations of at least this many bytes are dictionaries; a decoder's other allocations are smaller.
const DICTIONARY_BYTES_MIN: usize = 64 * 1024;

/// Keeps memory that liblzma frees until liblzma asks for the same size again.
///
/// A liblzma stream keeps most of its memory from block to block, but not all: it allocates the options in the header
/// of each .xz block again, and a block with other filters than the last one replaces everything, including the
/// dictionary. A dictionary of another size replaces the kept one, so there are never two.
pub(crate) struct LzmaMemory {
    state: NonNull<State>,
}

struct State {
    allocator: lzma_allocator,
    kept: Vec<Allocation>,
    kept_bytes: usize,
    /// The size of all allocations, in use or kept.
    held_bytes: usize,
}

/// An unused allocation. It begins with its header.
#[derive(Clone, Copy)]
struct Allocation {
    start: NonNull<u8>,
    /// The length after the header, in bytes.
    len: usize,
}

impl LzmaMemory {
    /// Creates an allocator that holds nothing.
    pub(crate) fn new() -> Self {
        let state = Box::leak(Box::new(State {
            allocator: lzma_allocator { alloc: Some(allocate), free: Some(free), opaque: ptr::null_mut() },
            kept: Vec::with_capacity(KEPT_COUNT_MAX),
            kept_bytes: 0,
            held_bytes: 0,
        }));
        let state = NonNull::from(state);
        // SAFETY: the pointer comes from a box that only the drop of `self` frees.
        unsafe { (*state.as_ptr()).allocator.opaque = state.as_ptr().cast() };
        Self { state }
    }

    /// The allocator in liblzma's form. It is valid as long as `self`, which outlives all its allocations.
    pub(crate) fn allocator(&self) -> *const lzma_allocator {
        // SAFETY: the pointer is valid; no reference is made.
        unsafe { &raw const (*self.state.as_ptr()).allocator }
    }

    /// The size in bytes of all allocations, in use or kept.
    pub(crate) fn held_bytes(&self) -> usize {
        // SAFETY: the pointer is valid, and nothing changes the state while `self` is borrowed: liblzma changes it only
        // during calls with exclusive access to the stream, and so to the memory.
        unsafe { (*self.state.as_ptr()).held_bytes }
    }
}

impl State {
    /// Frees the kept dictionaries.
    fn drop_kept_dictionaries(&mut self) {
        let Self { kept, kept_bytes, held_bytes, .. } = self;
        kept.retain(|allocation| {
            let is_dictionary = allocation.len >= DICTIONARY_BYTES_MIN;
            if is_dictionary {
                *kept_bytes -= allocation.len;
                *held_bytes -= allocation.len;
                // SAFETY: kept allocations are not in use.
                unsafe { allocation.give_back() };
            }
            !is_dictionary
        });
    }
}

impl Drop for LzmaMemory {
    fn drop(&mut self) {
        // SAFETY: the state was leaked from a box, and nothing points to it after the stream has ended.
        let state = unsafe { Box::from_raw(self.state.as_ptr()) };
        for allocation in &state.kept {
            // SAFETY: `allocate` allocated it, and kept allocations are not in use.
            unsafe { allocation.give_back() };
        }
    }
}

impl Allocation {
    fn layout(len: usize) -> Option<Layout> {
        Layout::from_size_align(len.checked_add(HEADER_LEN)?, HEADER_LEN).ok()
    }

    fn new(len: usize) -> Option<Self> {
        // SAFETY: the layout is not empty, because of the header.
        let start = NonNull::new(unsafe { alloc(Self::layout(len)?) })?;
        // SAFETY: the header is at least as long as a `usize`, and aligned for it.
        unsafe { start.cast::<usize>().write(len) };
        Some(Self { start, len })
    }

    /// The pointer that liblzma gets.
    fn content(self) -> *mut c_void {
        // SAFETY: the allocation is longer than its header.
        unsafe { self.start.add(HEADER_LEN) }.as_ptr().cast()
    }

    /// The allocation whose content is at `content`.
    ///
    /// # Safety
    /// `content` comes from [`Allocation::content`] and has not been freed.
    unsafe fn of(content: NonNull<c_void>) -> Self {
        // SAFETY: the header precedes the content.
        let start = unsafe { content.cast::<u8>().sub(HEADER_LEN) };
        // SAFETY: `new` wrote it there.
        let len = unsafe { start.cast::<usize>().read() };
        Self { start, len }
    }

    /// Frees the memory.
    ///
    /// # Safety
    /// The memory is not used afterwards.
    unsafe fn give_back(self) {
        if let Some(layout) = Self::layout(self.len) {
            // SAFETY: `new` allocated it with this layout.
            unsafe { dealloc(self.start.as_ptr(), layout) };
        }
    }
}

extern "C" fn allocate(state: *mut c_void, count: usize, size: usize) -> *mut c_void {
    // SAFETY: liblzma passes the `opaque` pointer that it was given, during a call with exclusive access to the stream,
    // and so to the memory.
    let state = unsafe { &mut *state.cast::<State>() };
    let Some(len) = count.checked_mul(size) else { return ptr::null_mut() };
    let kept = state.kept.iter().position(|allocation| allocation.len == len);
    let allocation = match kept {
        Some(index) => {
            state.kept_bytes -= len;
            Some(state.kept.remove(index))
        }
        None => {
            if len >= DICTIONARY_BYTES_MIN {
                state.drop_kept_dictionaries();
            }
            let allocation = Allocation::new(len);
            state.held_bytes += if allocation.is_some() { len } else { 0 };
            allocation
        }
    };
    allocation.map_or(ptr::null_mut(), Allocation::content)
}

extern "C" fn free(state: *mut c_void, content: *mut c_void) {
    let Some(content) = NonNull::new(content) else { return };
    // SAFETY: as in `allocate`.
    let state = unsafe { &mut *state.cast::<State>() };
    // SAFETY: liblzma frees only what `allocate` returned, and only once.
    let allocation = unsafe { Allocation::of(content) };
    let is_too_long = allocation.len > KEPT_BYTES_MAX;
    // The oldest kept allocation goes first: it is the least likely to be reused.
    while !state.kept.is_empty()
        && (state.kept.len() == KEPT_COUNT_MAX || state.kept_bytes + allocation.len > KEPT_BYTES_MAX)
        && !is_too_long
    {
        let oldest = state.kept.remove(0);
        state.kept_bytes -= oldest.len;
        state.held_bytes -= oldest.len;
        // SAFETY: kept allocations are not in use.
        unsafe { oldest.give_back() };
    }
    if is_too_long {
        state.held_bytes -= allocation.len;
        // SAFETY: liblzma does not use it any more.
        unsafe { allocation.give_back() };
    } else {
        state.kept_bytes += allocation.len;
        state.kept.push(allocation);
    }
}
