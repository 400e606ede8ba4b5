//! Marks the threads that serve requests, to detect deadlocks in debug builds.
//!
//! With `front=kernel`, the kernel's EROFS reads from a hidden FUSE mount. A thread that serves that mount would
//! deadlock if it waited for the front, for example to mount or unmount it.

use std::cell::Cell;

thread_local! {
    static SERVES: Cell<bool> = const { Cell::new(false) };
}

/// Marks the calling thread as one that serves requests.
pub fn mark_serving_thread() {
    SERVES.set(true);
}

/// Asserts that the calling thread may wait for a mount.
///
/// # Panics
/// In debug builds, if the calling thread serves requests.
pub fn may_wait_for_mount() {
    debug_assert!(!SERVES.get(), "a thread that serves requests waits for a mount");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_serve_requests_may_not_wait_for_mounts() {
        for (serves, is_refused) in [(false, false), (true, cfg!(debug_assertions))] {
            let thread = std::thread::spawn(move || {
                if serves {
                    mark_serving_thread();
                }
                may_wait_for_mount();
            });
            assert_eq!(thread.join().is_err(), is_refused, "{serves}");
        }
    }
}
