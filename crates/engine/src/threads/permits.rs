//! Permits for session threads to block on a source.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

/// Limits the number of session threads that block on a source at the same time. The other session threads continue to
/// serve requests whose bytes are in memory. Blocking on the session thread that took the request saves two thread
/// switches.
///
/// The volumes that the same threads serve share the permits ([`Volume::permit_blocking`](crate::Volume::permit_blocking)).
pub struct BlockingPermits {
    free: AtomicUsize,
    /// Called by a thread that got a permit, before it blocks.
    before_blocking: Box<dyn Fn() + Send + Sync>,
}

impl BlockingPermits {
    /// Creates `count` permits. A thread that takes one first calls `before_blocking`, so that another thread can take its
    /// place.
    pub fn new(count: usize, before_blocking: impl Fn() + Send + Sync + 'static) -> Self {
        Self { free: AtomicUsize::new(count), before_blocking: Box::new(before_blocking) }
    }
}

/// The permits of one volume: none at first, later a part of those that it shares with others.
#[derive(Default)]
pub(crate) struct VolumePermits {
    shared: OnceLock<Arc<BlockingPermits>>,
    /// The number of permits that the volume may take besides those that it has.
    free: AtomicUsize,
}

/// A thread's permit to block, returned when dropped.
pub(crate) struct BlockingPermit<'permits> {
    shared: &'permits BlockingPermits,
    own: &'permits VolumePermits,
}

impl VolumePermits {
    /// Lets the volume have up to `count_max` of the permits at the same time. Only the first call counts.
    pub(crate) fn share(&self, permits: &Arc<BlockingPermits>, count_max: usize) {
        if self.shared.set(Arc::clone(permits)).is_ok() {
            self.free.store(count_max, Relaxed);
        }
    }

    /// Takes a permit for the calling thread, if one is free.
    pub(crate) fn take(&self) -> Option<BlockingPermit<'_>> {
        let shared = self.shared.get()?;
        take_one(&self.free)?;
        if take_one(&shared.free).is_none() {
            self.free.fetch_add(1, Relaxed);
            return None;
        }
        (shared.before_blocking)();
        Some(BlockingPermit { shared, own: self })
    }
}

fn take_one(free: &AtomicUsize) -> Option<usize> {
    free.fetch_update(Relaxed, Relaxed, |free| free.checked_sub(1)).ok()
}

impl Drop for BlockingPermit<'_> {
    fn drop(&mut self) {
        self.shared.free.fetch_add(1, Relaxed);
        self.own.free.fetch_add(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_are_limited_for_each_volume_and_for_all() {
        let taken = Arc::new(AtomicUsize::new(0));
        let told = Arc::clone(&taken);
        let before_blocking = move || {
            told.fetch_add(1, Relaxed);
        };
        let permits = Arc::new(BlockingPermits::new(3, before_blocking));
        let volumes: [VolumePermits; 2] = Default::default();
        assert!(volumes[0].take().is_none(), "it has no permits yet");
        volumes.iter().for_each(|volume| volume.share(&permits, 2));
        let first = [volumes[0].take(), volumes[0].take()];
        assert!(first.iter().all(Option::is_some) && volumes[0].take().is_none(), "one volume has two at most");
        let other = volumes[1].take();
        assert!(other.is_some() && volumes[1].take().is_none(), "all have three");
        assert_eq!(taken.load(Relaxed), 3);
        drop(first);
        let more = volumes[1].take();
        assert!(more.is_some() && volumes[1].take().is_none());
        drop((other, more));
        assert!(volumes[0].take().is_some());
    }
}
