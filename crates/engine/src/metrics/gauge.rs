//! A gauge: a current count and its maximum.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

/// Counts live objects: their current number and its maximum.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gauge {
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    now: AtomicU64,
    max: AtomicU64,
}

/// A counted object. Dropping it decrements the gauge.
#[derive(Debug)]
pub(crate) struct Counted(Arc<Counts>);

impl Gauge {
    /// Counts one more.
    pub(crate) fn enter(&self) -> Counted {
        let now = self.counts.now.fetch_add(1, Relaxed) + 1;
        // A maximum rarely changes, so a plain load comes first.
        if now > self.counts.max.load(Relaxed) {
            self.counts.max.fetch_max(now, Relaxed);
        }
        Counted(Arc::clone(&self.counts))
    }

    pub(crate) fn now(&self) -> u64 {
        self.counts.now.load(Relaxed)
    }

    pub(crate) fn max(&self) -> u64 {
        self.counts.max.load(Relaxed)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::Gauge;

    #[test]
    fn dropped_objects_are_not_counted() {
        let gauge = Gauge::default();
        let first = gauge.enter();
        drop((gauge.enter(), gauge.enter()));
        assert_eq!((gauge.now(), gauge.max()), (1, 3));
        drop(first);
        assert_eq!((gauge.now(), gauge.max()), (0, 3));
    }
}
