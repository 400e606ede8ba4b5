//! Whether a thread may wait for bytes.
//!
//! A format reads metadata through the engine without knowing who asked. The thread that takes requests must not wait
//! for a source, so what it may do is a property of the thread while it asks.

use std::cell::Cell;

thread_local! {
    static MAY_WAIT: Cell<bool> = const { Cell::new(true) };
}

/// Whether the calling thread may wait for bytes that are not in memory.
pub(crate) fn may_wait() -> bool {
    MAY_WAIT.get()
}

/// Runs `work` without waiting: what would wait ends in [`Error::NotAtHand`](floe_image::Error::NotAtHand).
pub(crate) fn at_hand<R>(work: impl FnOnce() -> R) -> R {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            MAY_WAIT.set(self.0);
        }
    }
    let _restore = Restore(MAY_WAIT.replace(false));
    work()
}
