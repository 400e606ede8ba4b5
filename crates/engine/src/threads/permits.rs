//! Permits for session threads to block on a source.

use std::sync::{
    OnceLock,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

/// Limits the number of session threads that block on a source at the same time. The other session threads continue to
/// serve requests whose bytes are in memory. Blocking on the session thread that took the request saves two thread
/// switches.
#[derive(Default)]
pub(crate) struct BlockingPermits {
    free: AtomicUsize,
    /// Called by a thread that got a permit, before it blocks.
    before_blocking: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

/// A thread's permit to block, returned when dropped.
pub(crate) struct BlockingPermit<'permits>(&'permits BlockingPermits);

impl BlockingPermits {
    /// Adds `count` permits. Each thread that takes a permit first calls `before_blocking`, so that another thread can
    /// take its place. Only the first callback given is used.
    pub(crate) fn give(&self, count: usize, before_blocking: impl Fn() + Send + Sync + 'static) {
        let _ = self.before_blocking.set(Box::new(before_blocking));
        self.free.fetch_add(count, Relaxed);
    }

    /// Takes a permit for the calling thread, if one is free.
    pub(crate) fn take(&self) -> Option<BlockingPermit<'_>> {
        self.free.fetch_update(Relaxed, Relaxed, |free| free.checked_sub(1)).ok()?;
        if let Some(before_blocking) = self.before_blocking.get() {
            before_blocking();
        }
        Some(BlockingPermit(self))
    }
}

impl Drop for BlockingPermit<'_> {
    fn drop(&mut self) {
        self.0.free.fetch_add(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn the_number_of_permits_is_a_limit() {
        let (permits, taken) = (BlockingPermits::default(), Arc::new(AtomicUsize::new(0)));
        assert!(permits.take().is_none());
        let told = Arc::clone(&taken);
        permits.give(2, move || {
            told.fetch_add(1, Relaxed);
        });
        let (first, second) = (permits.take(), permits.take());
        assert!(first.is_some() && second.is_some() && permits.take().is_none());
        assert_eq!(taken.load(Relaxed), 2);
        drop(first);
        assert!(permits.take().is_some());
    }
}
