//! Whether a thread may wait for bytes.
//!
//! A format reads metadata through the engine without knowing who asked. The thread that takes requests must not wait
//! for a source, so what it may do is a property of the thread while it asks.

use std::{
    cell::Cell,
    sync::atomic::{AtomicIsize, Ordering::Relaxed},
};

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

/// How many of the threads that take requests may wait for a source at one time. The others stay free, so that requests
/// whose bytes are in memory never wait behind those whose bytes are not. Waiting where the request came in spares it
/// two changes of threads.
#[derive(Default)]
pub(crate) struct Lent {
    /// Negative where more wait than still may.
    free: AtomicIsize,
}

/// One thread that waits; free again when this is dropped.
pub(crate) struct Waiting<'lent>(&'lent Lent);

impl Lent {
    /// Lends so many threads more, or fewer.
    pub(crate) fn add(&self, count: isize) {
        self.free.fetch_add(count, Relaxed);
    }

    /// Has the calling thread be one of those that wait, unless as many wait as may.
    pub(crate) fn wait_here(&self) -> Option<Waiting<'_>> {
        self.free.fetch_update(Relaxed, Relaxed, |free| (free > 0).then_some(free - 1)).ok().map(|_| Waiting(self))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.free.fetch_add(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_threads_wait_than_were_lent() {
        let lent = Lent::default();
        assert!(lent.wait_here().is_none());
        lent.add(2);
        let (first, second) = (lent.wait_here(), lent.wait_here());
        assert!(first.is_some() && second.is_some() && lent.wait_here().is_none());
        drop(first);
        assert!(lent.wait_here().is_some());
        drop(second);
        lent.add(-2);
        assert!(lent.wait_here().is_none());
    }
}
