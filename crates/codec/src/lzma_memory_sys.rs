//! Memory for liblzma that it gets back rather than anew.

use std::{
    alloc::{Layout, alloc, dealloc},
    ffi::c_void,
    ptr::{self, NonNull},
};

use liblzma_sys::lzma_allocator;

/// How many bytes precede each allocation and hold its size; they keep its alignment.
const HEADER_LEN: usize = 16;
/// How many freed allocations are kept.
const KEPT_COUNT_MAX: usize = 16;
/// How many bytes they have together at most: the dictionary of a chain of filters that is not used now.
const KEPT_BYTES_MAX: usize = 9 * 1024 * 1024;
/// An allocation of at least this many bytes is a dictionary; all others of a decoder are smaller.
const DICTIONARY_BYTES_MIN: usize = 64 * 1024;

/// Memory that liblzma frees is kept for when it asks for as much again.
///
/// A stream keeps most of its memory from block to block, but not all: the options in the header of each .xz block are
/// allocated anew, and a block with other filters than the last replaces everything, the dictionary too. A dictionary of
/// another size takes the place of the one that is kept, so that there are never two.
pub(crate) struct LzmaMemory {
    state: NonNull<State>,
}

struct State {
    allocator: lzma_allocator,
    kept: Vec<Allocation>,
    kept_bytes: usize,
    /// What is in use and what is kept.
    held_bytes: usize,
}

/// Memory that is not in use. It begins with its header.
#[derive(Clone, Copy)]
struct Allocation {
    start: NonNull<u8>,
    /// How many bytes follow the header.
    len: usize,
}

impl LzmaMemory {
    /// Memory that holds nothing yet.
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

    /// What liblzma takes. It is valid as long as `self`, which outlives all that was allocated through it.
    pub(crate) fn allocator(&self) -> *const lzma_allocator {
        // SAFETY: the pointer is valid; no reference is made.
        unsafe { &raw const (*self.state.as_ptr()).allocator }
    }

    /// How many bytes liblzma has, and how many are kept for it.
    pub(crate) fn held_bytes(&self) -> usize {
        // SAFETY: the pointer is valid, and nothing changes the state while `self` is borrowed: liblzma does in calls that
        // have the stream, and so the memory, to themselves.
        unsafe { (*self.state.as_ptr()).held_bytes }
    }
}

impl State {
    /// Gives what is kept back to the system, as far as it is a dictionary.
    fn drop_kept_dictionaries(&mut self) {
        let Self { kept, kept_bytes, held_bytes, .. } = self;
        kept.retain(|allocation| {
            let is_dictionary = allocation.len >= DICTIONARY_BYTES_MIN;
            if is_dictionary {
                *kept_bytes -= allocation.len;
                *held_bytes -= allocation.len;
                // SAFETY: what is kept is not in use.
                unsafe { allocation.give_back() };
            }
            !is_dictionary
        });
    }
}

impl Drop for LzmaMemory {
    fn drop(&mut self) {
        // SAFETY: the state was leaked from a box, and nothing else points to it once the stream has ended.
        let state = unsafe { Box::from_raw(self.state.as_ptr()) };
        for allocation in &state.kept {
            // SAFETY: it was allocated by `allocate`, and what is kept is not in use.
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
        // SAFETY: the header is as long as a `usize` at least, and aligned for it.
        unsafe { start.cast::<usize>().write(len) };
        Some(Self { start, len })
    }

    /// What liblzma gets.
    fn content(self) -> *mut c_void {
        // SAFETY: the allocation is longer than its header.
        unsafe { self.start.add(HEADER_LEN) }.as_ptr().cast()
    }

    /// The allocation that `content` gave out.
    ///
    /// # Safety
    /// `content` comes from [`Allocation::content`] and was not given back.
    unsafe fn of(content: NonNull<c_void>) -> Self {
        // SAFETY: the header precedes the content.
        let start = unsafe { content.cast::<u8>().sub(HEADER_LEN) };
        // SAFETY: `new` wrote it there.
        let len = unsafe { start.cast::<usize>().read() };
        Self { start, len }
    }

    /// Gives the memory back to the system.
    ///
    /// # Safety
    /// It is not used after this.
    unsafe fn give_back(self) {
        if let Some(layout) = Self::layout(self.len) {
            // SAFETY: `new` allocated it with this layout.
            unsafe { dealloc(self.start.as_ptr(), layout) };
        }
    }
}

extern "C" fn allocate(state: *mut c_void, count: usize, size: usize) -> *mut c_void {
    // SAFETY: liblzma passes the `opaque` it was given, from within a call that has the stream, and so the memory, to
    // itself.
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
    // SAFETY: liblzma frees only what `allocate` gave it, and once.
    let allocation = unsafe { Allocation::of(content) };
    let is_too_long = allocation.len > KEPT_BYTES_MAX;
    // What was kept longest goes first: it is wanted least.
    while !state.kept.is_empty()
        && (state.kept.len() == KEPT_COUNT_MAX || state.kept_bytes + allocation.len > KEPT_BYTES_MAX)
        && !is_too_long
    {
        let oldest = state.kept.remove(0);
        state.kept_bytes -= oldest.len;
        state.held_bytes -= oldest.len;
        // SAFETY: what is kept is not in use.
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
