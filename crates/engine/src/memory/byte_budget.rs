//! A budget of bytes, as a fair semaphore, and the shares that its users have in it.

use std::sync::{
    Arc,
    atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst},
};

use floe_image::metrics;

use crate::sync::{Condvar, Mutex};

/// A share of a divided budget may hold this many times the bytes that it leaves to the others.
const LEFT_FACTOR: u64 = 3;

/// A budget of bytes. Its users take bytes through their [`BudgetShare`]s.
///
/// In a divided budget, no share takes so much that nothing is left for the others: it may hold three times the bytes that are
/// free, thus three quarters of the budget if no other share holds any. A request is granted regardless of that while its share
/// holds nothing, so an oversized user waits until its share has nothing else, and nobody waits for bytes that another share
/// holds for long. The budget is exceeded at most by one request of each share.
#[derive(Debug)]
pub(crate) struct ByteBudget {
    budget_bytes: u64,
    is_divided: bool,
    used_bytes: AtomicU64,
    used_bytes_max: AtomicU64,
    /// How often a thread had to wait.
    waits: AtomicU64,
    waiting: AtomicUsize,
    turns: Mutex<()>,
    freed: Condvar,
}

/// The share of one user in a budget: a fair semaphore. Waiters are served in order of arrival.
#[derive(Debug)]
pub(crate) struct BudgetShare {
    budget: Arc<ByteBudget>,
    used_bytes: AtomicU64,
    waiting: AtomicUsize,
    /// The ticket of the next thread that waits. Changed only while `turns` of the budget is locked, like the next field.
    next_ticket: AtomicU64,
    /// The ticket whose turn it is.
    current_ticket: AtomicU64,
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
    share: Arc<BudgetShare>,
    bytes: u64,
}

impl ByteBudget {
    /// A budget that several shares divide.
    pub(crate) fn divided(budget_bytes: u64) -> Arc<Self> {
        Self::new(budget_bytes, true)
    }

    /// The only share of a budget. It may take all of it.
    pub(crate) fn whole(budget_bytes: u64) -> Arc<BudgetShare> {
        Self::new(budget_bytes, false).share()
    }

    fn new(budget_bytes: u64, is_divided: bool) -> Arc<Self> {
        Arc::new(Self {
            budget_bytes,
            is_divided,
            used_bytes: AtomicU64::new(0),
            used_bytes_max: AtomicU64::new(0),
            waits: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            turns: Mutex::default(),
            freed: Condvar::default(),
        })
    }

    /// Adds a share.
    pub(crate) fn share(self: &Arc<Self>) -> Arc<BudgetShare> {
        Arc::new(BudgetShare {
            budget: Arc::clone(self),
            used_bytes: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            next_ticket: AtomicU64::new(0),
            current_ticket: AtomicU64::new(0),
        })
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

    /// Lets the waiters check again whether they can be served.
    fn wake(&self) {
        if self.waiting.load(SeqCst) > 0 {
            drop(self.turns.lock());
            self.freed.notify_all();
        }
    }
}

impl BudgetShare {
    pub(crate) fn budget(&self) -> &Arc<ByteBudget> {
        &self.budget
    }

    /// Takes `bytes`; waits until they are available.
    pub(crate) fn take(self: &Arc<Self>, bytes: u64) -> Reservation {
        if let Some(reservation) = self.take_now(bytes) {
            return reservation;
        }
        let budget = &self.budget;
        budget.waits.fetch_add(1, Relaxed);
        let mut turns = budget.turns.lock();
        let own = self.next_ticket.fetch_add(1, Relaxed);
        // Before the first check, so that every reservation dropped from here on wakes the waiters.
        self.waiting.fetch_add(1, SeqCst);
        budget.waiting.fetch_add(1, SeqCst);
        while self.current_ticket.load(Relaxed) != own || !self.reserve(bytes) {
            turns = budget.freed.wait(turns);
        }
        self.current_ticket.fetch_add(1, Relaxed);
        self.waiting.fetch_sub(1, SeqCst);
        budget.waiting.fetch_sub(1, SeqCst);
        drop(turns);
        // The bytes may also suffice for the next waiter.
        budget.freed.notify_all();
        Reservation { share: Arc::clone(self), bytes }
    }

    /// Takes `bytes` if they are available and no other thread waits for bytes of this share.
    pub(crate) fn take_now(self: &Arc<Self>, bytes: u64) -> Option<Reservation> {
        if self.waiting.load(SeqCst) > 0 {
            return None;
        }
        if !self.reserve(bytes) {
            // A waiter may have seen the bytes that this thread tried to take.
            self.budget.wake();
            return None;
        }
        Some(Reservation { share: Arc::clone(self), bytes })
    }

    /// Takes `bytes` if they are available, regardless of waiters.
    fn reserve(&self, bytes: u64) -> bool {
        let budget = &self.budget;
        let held = self.used_bytes.fetch_add(bytes, SeqCst);
        let taken = budget.used_bytes.fetch_update(SeqCst, SeqCst, |used| {
            let all = used.saturating_add(bytes);
            let left = budget.budget_bytes.checked_sub(all);
            let fits = |left| !budget.is_divided || held.saturating_add(bytes) <= LEFT_FACTOR.saturating_mul(left);
            (held == 0 || left.is_some_and(fits)).then_some(all)
        });
        let Ok(before) = taken else {
            self.used_bytes.fetch_sub(bytes, SeqCst);
            return false;
        };
        let used = before.saturating_add(bytes);
        // A maximum rarely changes, so a plain load comes first.
        if used > budget.used_bytes_max.load(Relaxed) {
            budget.used_bytes_max.fetch_max(used, Relaxed);
        }
        true
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let Self { share, bytes } = self;
        share.used_bytes.fetch_sub(*bytes, SeqCst);
        share.budget.used_bytes.fetch_sub(*bytes, SeqCst);
        share.budget.wake();
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use std::{sync::mpsc, thread};

    use super::*;

    #[test]
    fn only_a_single_reservation_may_exceed_the_budget() {
        let share = ByteBudget::whole(100);
        let most = AtomicU64::new(0);
        thread::scope(|scope| {
            for thread in 0..8_u64 {
                let (share, most) = (&share, &most);
                scope.spawn(move || {
                    for turn in 0..500 {
                        let bytes = (thread * 37 + turn * 11) % 130;
                        let reservation = share.take(bytes);
                        let used = share.budget().used_bytes();
                        // A single reservation may exceed the budget, next to reservations for no bytes.
                        assert!(used < 130, "{used}");
                        most.fetch_max(used, Relaxed);
                        drop(reservation);
                    }
                });
            }
        });
        let counters = share.budget().counters();
        assert_eq!(counters.used_bytes, 0);
        assert!(counters.used_bytes_max >= most.load(Relaxed) && counters.used_bytes_max < 130, "{counters:?}");
    }

    #[test]
    fn waiters_are_served_in_order() {
        let share = ByteBudget::whole(100);
        let held = share.take(60);
        let (sender, order) = mpsc::channel();
        thread::scope(|scope| {
            for (number, bytes) in [(0, 95), (1, 10), (2, 10)] {
                let (share, sender) = (&share, sender.clone());
                let waits = share.budget().counters().waits;
                scope.spawn(move || {
                    let _reservation = share.take(bytes);
                    sender.send(number).expect("a receiver");
                });
                while share.waiting.load(SeqCst) as u64 <= waits {
                    thread::yield_now();
                }
            }
            assert!(share.take_now(10).is_none(), "others wait");
            assert!(order.try_recv().is_err());
            drop(held);
            assert_eq!(order.recv(), Ok(0));
        });
        assert_eq!(order.try_iter().count(), 2);
    }

    #[test]
    fn shares_that_hold_all_they_may_leave_bytes_for_others() {
        let budget = ByteBudget::divided(1000);
        let fill = |share: &Arc<BudgetShare>| std::iter::from_fn(|| share.take_now(1)).collect::<Vec<_>>();
        let shares = [budget.share(), budget.share(), budget.share()];
        let held = shares.each_ref().map(fill);
        assert_eq!(held.each_ref().map(Vec::len), [750, 187, 47], "three quarters of what is left");
        let other = budget.share();
        let oversized = other.take_now(2000).expect("its share holds nothing");
        assert!(other.take_now(1).is_none(), "the budget is exceeded");
        drop(oversized);
        assert!(other.take_now(1).is_some());
        drop(held);
        assert_eq!(budget.used_bytes(), 0);
    }

    #[test]
    fn a_waiter_of_one_share_does_not_hold_up_another_share() {
        let budget = ByteBudget::divided(100);
        let (stuck, other) = (budget.share(), budget.share());
        let held = stuck.take(60);
        thread::scope(|scope| {
            scope.spawn(|| drop(stuck.take(60)));
            while stuck.waiting.load(SeqCst) == 0 {
                thread::yield_now();
            }
            for _ in 0..100 {
                drop(other.take(20));
            }
            drop(held);
        });
        assert_eq!(budget.used_bytes(), 0);
    }
}
