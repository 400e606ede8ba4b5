//! Admission: which of the reads that left the session thread may begin.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{
            AtomicU64, AtomicUsize,
            Ordering::{Relaxed, SeqCst},
        },
    },
};

use crate::{
    memory::byte_budget::{BudgetCounters, ByteBudget, Reservation},
    sync::{Mutex, MutexGuard},
};

/// Admits reads that left the session thread, within a budget for their replies. The kernel may send thousands of
/// reads, and each needs pages for its reply. Reads for which there is no room are queued in order of arrival, without
/// pages and without a thread.
pub(crate) struct Admission {
    budget: Arc<ByteBudget>,
    waiting: Mutex<VecDeque<Waiting>>,
    waits: AtomicU64,
    /// Calls of `admit` that the thread inside `admit` has not served yet.
    asked: AtomicUsize,
}

/// A queued read.
struct Waiting {
    bytes: u64,
    begin: Box<dyn FnOnce(Admitted) + Send>,
}

/// The memory of an admitted read. Dropping it admits queued reads.
pub(crate) struct Admitted {
    admission: Arc<Admission>,
    reservation: Option<Reservation>,
}

impl Admission {
    pub(crate) fn new(budget_bytes: u64) -> Self {
        Self {
            budget: ByteBudget::new(budget_bytes),
            waiting: Mutex::default(),
            waits: AtomicU64::new(0),
            asked: AtomicUsize::new(0),
        }
    }

    /// Admits a read of `bytes` at once. Returns `None` if there is no room or if other reads are queued.
    pub(crate) fn enter(self: &Arc<Self>, bytes: u64) -> Option<Admitted> {
        let is_free = self.lock().is_empty();
        let reservation = is_free.then(|| self.budget.take_now(bytes)).flatten()?;
        Some(Admitted { admission: Arc::clone(self), reservation: Some(reservation) })
    }

    /// Queues a read. `begin` is called once there is room, and hands the read to a thread.
    pub(crate) fn enter_later(self: &Arc<Self>, bytes: u64, begin: impl FnOnce(Admitted) + Send + 'static) {
        self.waits.fetch_add(1, Relaxed);
        self.lock().push_back(Waiting { bytes, begin: Box::new(begin) });
        // Room may have become free meanwhile.
        self.admit();
    }

    pub(crate) fn counters(&self) -> BudgetCounters {
        BudgetCounters { waits: self.waits.load(Relaxed), ..self.budget.counters() }
    }

    /// Begins queued reads for which there is room.
    fn admit(self: &Arc<Self>) {
        // A read may end within `begin`, which calls `admit` recursively. The outermost call continues on behalf of all
        // others.
        let mut asked = 1;
        if self.asked.fetch_add(1, SeqCst) > 0 {
            return;
        }
        while asked > 0 {
            while let Some((begin, admitted)) = self.next() {
                begin(admitted);
            }
            asked = self.asked.fetch_sub(asked, SeqCst) - asked;
        }
    }

    #[expect(clippy::type_complexity, reason = "the callback of a queued read, and its memory")]
    fn next(self: &Arc<Self>) -> Option<(Box<dyn FnOnce(Admitted) + Send>, Admitted)> {
        let mut waiting = self.lock();
        let reservation = self.budget.take_now(waiting.front()?.bytes)?;
        let admitted = Admitted { admission: Arc::clone(self), reservation: Some(reservation) };
        waiting.pop_front().map(|first| (first.begin, admitted))
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Waiting>> {
        self.waiting.lock()
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        drop(self.reservation.take());
        self.admission.admit();
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn reads_begin_in_their_order_as_there_is_room() {
        let admission = Arc::new(Admission::new(100));
        let (sender, begun) = mpsc::channel();
        let first = admission.enter(80).expect("room");
        for number in 0..3 {
            assert!(admission.enter(30).is_none());
            let sender = sender.clone();
            admission.enter_later(30, move |admitted| sender.send((number, admitted)).expect("a receiver"));
        }
        assert!(begun.try_recv().is_err());
        drop(first);
        let begun: Vec<_> = begun.try_iter().collect();
        assert_eq!(begun.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [0, 1, 2]);
        drop(begun);
        let counters = admission.counters();
        assert_eq!((counters.used_bytes, counters.used_bytes_max, counters.waits), (0, 90, 3));
    }

    #[test]
    fn reads_that_end_as_they_begin_take_no_stack() {
        let admission = Arc::new(Admission::new(1));
        let first = admission.enter(1).expect("room");
        for _ in 0..200_000 {
            admission.enter_later(1, drop);
        }
        drop(first);
        assert!(admission.enter(1).is_some());
    }
}
