//! The budget of prefetched bytes that no read has used yet, and feedback on how many were used.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use floe_sync::Mutex;

use crate::metrics::moving_share::MovingShare;

/// The budget of all prefetched bytes that no read has used yet. When it is full, the oldest claims count as wasted.
#[derive(Debug, Default)]
pub(crate) struct PrefetchBudget {
    max_bytes: AtomicU64,
    bytes: AtomicU64,
    /// Claims that can be counted as wasted, the oldest first.
    claims: Mutex<VecDeque<Weak<Unused>>>,
}

/// How much of the prefetched bytes of one kind was used.
#[derive(Debug)]
pub(crate) struct Feedback {
    used_share: MovingShare,
    judged_bytes: u64,
    used_count: AtomicU64,
    wasted_count: AtomicU64,
}

/// A claim on the budget, until the bytes are used or wasted: evicted or dropped without use.
#[derive(Debug)]
pub(crate) struct Unused {
    budget: Arc<PrefetchBudget>,
    bytes: u64,
    is_settled: AtomicBool,
    feedback: Option<Arc<Feedback>>,
}

impl PrefetchBudget {
    pub(crate) fn set_max(&self, max_bytes: u64) {
        self.max_bytes.store(max_bytes, Relaxed);
    }

    pub(crate) fn max_bytes(&self) -> u64 {
        self.max_bytes.load(Relaxed)
    }

    /// Claims prefetched bytes and makes room by counting the oldest claims as wasted. Returns `None` if held bytes
    /// fill the budget.
    pub(crate) fn claim(self: &Arc<Self>, bytes: u64, feedback: &Arc<Feedback>) -> Option<Arc<Unused>> {
        let unused = self.take(bytes, Some(Arc::clone(feedback)))?;
        self.claims.lock().push_back(Arc::downgrade(&unused));
        Some(unused)
    }

    /// Holds bytes on their way to a sink. They are returned when the result is dropped and count as neither used nor
    /// wasted.
    pub(crate) fn hold(self: &Arc<Self>, bytes: u64) -> Option<Arc<Unused>> {
        self.take(bytes, None)
    }

    fn take(self: &Arc<Self>, bytes: u64, feedback: Option<Arc<Feedback>>) -> Option<Arc<Unused>> {
        let fits = |used: u64| {
            let all = used.saturating_add(bytes);
            (used == 0 || all <= self.max_bytes()).then_some(all)
        };
        while self.bytes.fetch_update(Relaxed, Relaxed, fits).is_err() {
            let oldest = self.claims.lock().pop_front()?;
            if let Some(oldest) = oldest.upgrade() {
                oldest.settle(false);
            }
        }
        Some(Arc::new(Unused { budget: Arc::clone(self), bytes, is_settled: AtomicBool::new(false), feedback }))
    }
}

impl Feedback {
    /// Creates feedback with an assumed `used_share`, in units of 1 / [`MovingShare::WHOLE`]. The share is a moving average over
    /// `judged_bytes`.
    pub(crate) fn new(used_share: u32, judged_bytes: u64) -> Arc<Self> {
        Arc::new(Self {
            // Each claim has a weight of its own.
            used_share: MovingShare::new(1, used_share),
            judged_bytes,
            used_count: AtomicU64::new(0),
            wasted_count: AtomicU64::new(0),
        })
    }

    /// Returns the part of `max` that corresponds to the share of used bytes.
    pub(crate) fn part_of(&self, max: u64) -> u64 {
        max / u64::from(MovingShare::WHOLE) * u64::from(self.used_share.get())
    }

    /// Returns the number of used and of wasted claims.
    pub(crate) fn used_and_wasted(&self) -> (u64, u64) {
        (self.used_count.load(Relaxed), self.wasted_count.load(Relaxed))
    }

    fn note(&self, bytes: u64, is_used: bool) {
        let count = if is_used { &self.used_count } else { &self.wasted_count };
        count.fetch_add(1, Relaxed);
        let weight = bytes.min(self.judged_bytes) * u64::from(MovingShare::WHOLE) / self.judged_bytes;
        self.used_share.note_weighted(weight as u32, is_used);
    }
}

impl Unused {
    /// Notes that a read used the bytes.
    pub(crate) fn note_used(&self) {
        self.settle(true);
    }

    fn settle(&self, is_used: bool) {
        // Most claims are settled already, so a plain load comes first.
        if self.is_settled.load(Relaxed) || self.is_settled.swap(true, Relaxed) {
            return;
        }
        self.budget.bytes.fetch_sub(self.bytes, Relaxed);
        if let Some(feedback) = &self.feedback {
            feedback.note(self.bytes, is_used);
        }
    }
}

impl Drop for Unused {
    fn drop(&mut self) {
        self.settle(false);
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    fn budget(max_bytes: u64) -> Arc<PrefetchBudget> {
        let budget = Arc::new(PrefetchBudget::default());
        budget.set_max(max_bytes);
        budget
    }

    #[test]
    fn the_oldest_unused_bytes_make_room_and_count_as_wasted() {
        let (budget, feedback) = (budget(100), Feedback::new(MovingShare::WHOLE, 1000));
        let claims: Vec<_> = (0..3).map(|_| budget.claim(40, &feedback).expect("room")).collect();
        assert_eq!((budget.bytes.load(Relaxed), feedback.used_and_wasted()), (80, (0, 1)));
        claims.iter().for_each(|claim| claim.note_used());
        assert_eq!((budget.bytes.load(Relaxed), feedback.used_and_wasted()), (0, (2, 1)), "each is settled once");
        drop(claims);
        assert_eq!(feedback.used_and_wasted(), (2, 1));
        drop(budget.claim(1000, &feedback).expect("one may be larger than all"));
        assert_eq!((budget.bytes.load(Relaxed), feedback.used_and_wasted()), (0, (2, 2)));
    }

    #[test]
    fn held_bytes_stay_until_they_are_given_back() {
        let (budget, feedback) = (budget(100), Feedback::new(MovingShare::WHOLE, 1000));
        let claim = budget.claim(60, &feedback).expect("room");
        let held = [budget.hold(60).expect("the claim makes room"), budget.hold(40).expect("room")];
        assert_eq!(feedback.used_and_wasted(), (0, 1));
        assert!(budget.hold(1).is_none() && budget.claim(1, &feedback).is_none());
        drop((claim, held));
        assert!(budget.hold(100).is_some());
        assert_eq!((budget.bytes.load(Relaxed), feedback.used_and_wasted()), (0, (0, 1)));
    }

    #[test]
    fn windows_follow_the_share_of_used_bytes() {
        let (budget, feedback) = (budget(1 << 30), Feedback::new(MovingShare::WHOLE, 1 << 20));
        let note = |count: u32, is_used: bool| {
            for _ in 0..count {
                let claim = budget.claim(64 << 10, &feedback).expect("room");
                if is_used {
                    claim.note_used();
                }
            }
            feedback.part_of(2 << 20)
        };
        assert_eq!(note(100, true), 2 << 20);
        let after_some_waste = note(8, false);
        assert!((1 << 20..3 << 19).contains(&after_some_waste), "{after_some_waste}");
        assert!(note(100, false) < 16 << 10);
        assert!(note(32, true) > 3 << 19);
    }
}
