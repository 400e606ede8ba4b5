//! How many of the threads that take requests may wait for a source.

use std::sync::atomic::{AtomicIsize, Ordering::Relaxed};

/// How many of the threads that take requests may wait for a source at one time. The others stay free, so that requests
/// whose bytes are in memory never wait behind those whose bytes are not. Waiting where the request came in spares it two
/// changes of threads.
#[derive(Default)]
pub(crate) struct BlockingPermits {
    /// Negative where more threads wait than still may.
    free: AtomicIsize,
}

/// A thread's permit to wait, given back when this is dropped.
pub(crate) struct BlockingPermit<'permits>(&'permits BlockingPermits);

impl BlockingPermits {
    /// Adds `count` permits, or takes them away if it is negative.
    pub(crate) fn add(&self, count: isize) {
        self.free.fetch_add(count, Relaxed);
    }

    /// A permit for the calling thread, if one is free.
    pub(crate) fn take(&self) -> Option<BlockingPermit<'_>> {
        self.free
            .fetch_update(Relaxed, Relaxed, |free| (free > 0).then_some(free - 1))
            .ok()
            .map(|_| BlockingPermit(self))
    }
}

impl Drop for BlockingPermit<'_> {
    fn drop(&mut self) {
        self.0.free.fetch_add(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_permits_are_taken_than_there_are() {
        let permits = BlockingPermits::default();
        assert!(permits.take().is_none());
        permits.add(2);
        let (first, second) = (permits.take(), permits.take());
        assert!(first.is_some() && second.is_some() && permits.take().is_none());
        drop(first);
        assert!(permits.take().is_some());
        drop(second);
        permits.add(-2);
        assert!(permits.take().is_none());
    }
}
