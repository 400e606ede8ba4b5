//! How many of the threads that take requests may wait for a source.

use std::sync::{
    OnceLock,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

/// How many of the threads that take requests may wait for a source at one time. The others stay free, so that requests
/// whose bytes are in memory never wait behind those whose bytes are not. Waiting where the request came in spares it two
/// changes of threads.
#[derive(Default)]
pub(crate) struct BlockingPermits {
    free: AtomicUsize,
    /// Called by a thread that has got a permit, before it waits.
    before_blocking: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

/// A thread's permit to wait, given back when this is dropped.
pub(crate) struct BlockingPermit<'permits>(&'permits BlockingPermits);

impl BlockingPermits {
    /// Gives `count` permits. `before_blocking` is called by each thread that takes one, so that another can take its
    /// place; only the first one given counts.
    pub(crate) fn give(&self, count: usize, before_blocking: impl Fn() + Send + Sync + 'static) {
        let _ = self.before_blocking.set(Box::new(before_blocking));
        self.free.fetch_add(count, Relaxed);
    }

    /// A permit for the calling thread, if one is free.
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
    fn no_more_permits_are_taken_than_there_are() {
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
