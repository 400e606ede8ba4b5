//! Memory that was freed and that the C library keeps.

/// What is at least so long goes back to the system when it is freed, in bytes.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const LARGE_LEN: libc::c_int = 1 << 20;

/// Gives memory that was freed, of all threads, back to the system, and from now on what is large as soon as it is freed.
///
/// It is for a process that needs much memory in one phase and other memory in the next one. It takes some milliseconds,
/// and what is large is dearer to have from now on.
pub fn release_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: both functions take numbers, may be called at any time from any thread, and touch only what is free.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_LEN);
        libc::malloc_trim(0);
    }
}
