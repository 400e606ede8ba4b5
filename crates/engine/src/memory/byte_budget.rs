//! A budget of bytes, as a fair semaphore.

use std::sync::{
    Arc,
    atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst},
};

use floe_image::metrics;

use crate::sync::{Condvar, Mutex};

/// A budget of bytes, as a fair semaphore: waiters are served in order of arrival. A request larger than the whole
/// budget is granted while nothing else is taken, so an oversized user waits until it is alone.
#[derive(Debug)]
pub(crate) struct ByteBudget {
    budget_bytes: u64,
    used_bytes: AtomicU64,
    used_bytes_max: AtomicU64,
    /// How often a thread had to wait.
    waits: AtomicU64,
    waiting: AtomicUsize,
    turns: Mutex<Turns>,
    freed: Condvar,
}

#[derive(Debug, Default)]
struct Turns {
    /// The ticket of the next thread that waits.
    next: u64,
    /// The ticket whose turn it is.
    current: u64,
}

metrics! {
    /// Counters of a byte budget.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct BudgetCounters {
        /// The size of the budget in bytes.
        pub budget_bytes: u64 = Gauge,
        /// Bytes taken now.
        pub used_bytes: u64 = Gauge,
        /// The most bytes taken at one time.
        pub used_bytes_max: u64 = Gauge,
        /// How often a caller had to wait.
        pub waits: u64 = Counter,
    }
}

/// Bytes taken from a budget, returned when dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    budget: Arc<ByteBudget>,
    bytes: u64,
}

impl ByteBudget {
    pub(crate) fn new(budget_bytes: u64) -> Arc<Self> {
        Arc::new(Self {
            budget_bytes,
            used_bytes: AtomicU64::new(0),
            used_bytes_max: AtomicU64::new(0),
            waits: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            turns: Mutex::default(),
            freed: Condvar::default(),
        })
    }

    /// Takes `bytes`; waits until they are available.
    pub(crate) fn take(self: &Arc<Self>, bytes: u64) -> Reservation {
        if let Some(reservation) = self.take_now(bytes) {
            return reservation;
        }
        self.waits.fetch_add(1, Relaxed);
        let mut turns = self.turns.lock();
        let own = turns.next;
        turns.next += 1;
        // Before the first check, so that every reservation dropped from here on wakes the waiters.
        self.waiting.fetch_add(1, SeqCst);
        while turns.current != own || !self.reserve(bytes) {
            turns = self.freed.wait(turns);
        }
        turns.current += 1;
        self.waiting.fetch_sub(1, SeqCst);
        drop(turns);
        // The bytes may also suffice for the next waiter.
        self.freed.notify_all();
        Reservation { budget: Arc::clone(self), bytes }
    }

    /// Takes `bytes` if they are available and no thread waits.
    pub(crate) fn take_now(self: &Arc<Self>, bytes: u64) -> Option<Reservation> {
        let is_taken = self.waiting.load(SeqCst) == 0 && self.reserve(bytes);
        is_taken.then(|| Reservation { budget: Arc::clone(self), bytes })
    }

    pub(crate) fn budget_bytes(&self) -> u64 {
        self.budget_bytes
    }

    pub(crate) fn used_bytes(&self) -> u64 {
        self.used_bytes.load(SeqCst)
    }

    pub(crate) fn counters(&self) -> BudgetCounters {
        BudgetCounters {
            budget_bytes: self.budget_bytes,
            used_bytes: self.used_bytes(),
            used_bytes_max: self.used_bytes_max.load(Relaxed),
            waits: self.waits.load(Relaxed),
        }
    }

    /// Takes `bytes` if they are available, regardless of waiters.
    fn reserve(&self, bytes: u64) -> bool {
        let taken = self.used_bytes.fetch_update(SeqCst, SeqCst, |used| {
            let all = used.saturating_add(bytes);
            (used == 0 || all <= self.budget_bytes).then_some(all)
        });
        let Ok(before) = taken else { return false };
        let used = before.saturating_add(bytes);
        // A maximum rarely changes, so a plain load comes first.
        if used > self.used_bytes_max.load(Relaxed) {
            self.used_bytes_max.fetch_max(used, Relaxed);
        }
        true
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.used_bytes.fetch_sub(self.bytes, SeqCst);
        if self.budget.waiting.load(SeqCst) > 0 {
            drop(self.budget.turns.lock());
            self.budget.freed.notify_all();
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use std::{sync::mpsc, thread};

    use super::*;

    #[test]
    fn only_a_single_reservation_may_exceed_the_budget() {
        let budget = ByteBudget::new(100);
        let most = AtomicU64::new(0);
        thread::scope(|scope| {
            for thread in 0..8_u64 {
                let (budget, most) = (&budget, &most);
                scope.spawn(move || {
                    for turn in 0..500 {
                        let bytes = (thread * 37 + turn * 11) % 130;
                        let reservation = budget.take(bytes);
                        let used = budget.used_bytes();
                        // A single reservation may exceed the budget, next to reservations for no bytes.
                        assert!(used < 130, "{used}");
                        most.fetch_max(used, Relaxed);
                        drop(reservation);
                    }
                });
            }
        });
        let counters = budget.counters();
        assert_eq!(counters.used_bytes, 0);
        assert!(counters.used_bytes_max >= most.load(Relaxed) && counters.used_bytes_max < 130, "{counters:?}");
    }

    #[test]
    fn waiters_are_served_in_order() {
        let budget = ByteBudget::new(100);
        let held = budget.take(60);
        let (sender, order) = mpsc::channel();
        thread::scope(|scope| {
            for (number, bytes) in [(0, 95), (1, 10), (2, 10)] {
                let (budget, sender) = (&budget, sender.clone());
                let waits = budget.counters().waits;
                scope.spawn(move || {
                    let _reservation = budget.take(bytes);
                    sender.send(number).expect("a receiver");
                });
                while budget.waiting.load(SeqCst) as u64 <= waits {
                    thread::yield_now();
                }
            }
            assert!(budget.take_now(10).is_none(), "others wait");
            assert!(order.try_recv().is_err());
            drop(held);
            assert_eq!(order.recv(), Ok(0));
        });
        assert_eq!(order.try_iter().count(), 2);
    }
}
