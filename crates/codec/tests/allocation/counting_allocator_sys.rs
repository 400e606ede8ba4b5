//! Counts calls of the C library's allocation functions, from Rust and C code alike.

use std::{cell::Cell, ffi::c_void};

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

unsafe extern "C" {
    fn __libc_malloc(size: usize) -> *mut c_void;
    fn __libc_calloc(count: usize, size: usize) -> *mut c_void;
    fn __libc_realloc(memory: *mut c_void, size: usize) -> *mut c_void;
}

/// How many allocations this thread makes in `run`, and the size of the largest in bytes.
pub(crate) fn allocations(run: impl FnOnce()) -> (usize, usize) {
    COUNT.set(0);
    LARGEST.set(0);
    run();
    (COUNT.get(), LARGEST.get())
}

fn count(size: usize) {
    COUNT.set(COUNT.get() + 1);
    LARGEST.set(LARGEST.get().max(size));
}

// SAFETY: these functions replace those of the C library and forward to their internal names.
#[unsafe(no_mangle)]
extern "C" fn malloc(size: usize) -> *mut c_void {
    count(size);
    // SAFETY: the caller upholds the contract of `malloc`.
    unsafe { __libc_malloc(size) }
}

// SAFETY: as for `malloc`.
#[unsafe(no_mangle)]
extern "C" fn calloc(members: usize, size: usize) -> *mut c_void {
    count(members.saturating_mul(size));
    // SAFETY: the caller upholds the contract of `calloc`.
    unsafe { __libc_calloc(members, size) }
}

// SAFETY: as for `malloc`.
#[unsafe(no_mangle)]
unsafe extern "C" fn realloc(memory: *mut c_void, size: usize) -> *mut c_void {
    count(size);
    // SAFETY: the caller upholds the contract of `realloc`.
    unsafe { __libc_realloc(memory, size) }
}
