//! Freed memory that the C library retains.

/// Allocations of at least this many bytes return to the system when they are freed.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const LARGE_LEN: libc::c_int = 1 << 20;

/// Returns freed memory of all threads to the system; from now on, large allocations return as soon as they are freed.
///
/// It is meant for a process that needs much memory in one phase and different memory in the next. It takes some
/// milliseconds, and large allocations are slower afterwards.
pub fn release_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: both functions take numbers, may be called at any time from any thread, and touch only free memory.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_LEN);
        libc::malloc_trim(0);
    }
}
