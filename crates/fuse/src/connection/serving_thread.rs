//! Which threads serve requests.
//!
//! The kernel's EROFS in front of a hidden mount waits for the threads that serve the mount. A thread that served requests
//! and waited for the front, for its mount or its unmount too, would wait for itself.

use std::cell::Cell;

thread_local! {
    static SERVES: Cell<bool> = const { Cell::new(false) };
}

/// Says that the calling thread serves requests, from now on.
pub(crate) fn mark() {
    SERVES.set(true);
}

/// Says that the calling thread is going to wait for a mount, which a thread that serves requests must never do.
///
/// # Panics
/// It serves requests. Builds for debugging check this.
pub(crate) fn may_wait_for_mount() {
    debug_assert!(!SERVES.get(), "a thread that serves requests waits for a mount");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_serve_requests_may_not_wait_for_mounts() {
        for (serves, is_refused) in [(false, false), (true, true)] {
            let thread = std::thread::spawn(move || {
                if serves {
                    mark();
                }
                may_wait_for_mount();
            });
            assert_eq!(thread.join().is_err(), is_refused, "{serves}");
        }
    }
}
