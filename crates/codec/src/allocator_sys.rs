//! Memory that the C library retains, and address space that it reserves.

/// Allocations of at least this many bytes return to the system when they are freed.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const LARGE_LEN: libc::c_int = 1 << 20;

/// The address space that the C library reserves for each arena, in bytes (on 64-bit machines).
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const ARENA_BYTES: u64 = 64 << 20;

/// The arenas together reserve at most one part in `ARENA_PART` of the address space.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const ARENA_PART: u64 = 8;

/// Limits the arenas of the C library to a part of `address_space_bytes`, and to one if that is not enough for more. By
/// default each thread reserves one until there are eight per CPU. Threads that share an arena wait for each other.
///
/// It is meant for a process whose address space is limited (`RLIMIT_AS`), before it starts threads.
pub fn limit_arenas(address_space_bytes: u64) {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        let count = (address_space_bytes / ARENA_PART / ARENA_BYTES).max(1);
        // SAFETY: the function takes numbers, and may be called at any time from any thread.
        unsafe {
            libc::mallopt(libc::M_ARENA_MAX, libc::c_int::try_from(count).unwrap_or(libc::c_int::MAX));
        }
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    let _ = address_space_bytes;
}

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
