//! Admission: which of the reads that left the session thread may begin.

use std::sync::{
    Arc,
    atomic::{
        AtomicU64, AtomicUsize,
        Ordering::{Relaxed, SeqCst},
    },
};

use crate::{
    memory::byte_budget::{BudgetCounters, BudgetShare, ByteBudget, Reservation},
    sync::{Mutex, MutexGuard},
    turns::{Flow, Turns},
};

/// Admits reads that left the session thread, within a budget for their replies. The kernel may send thousands of
/// reads, and each needs pages for its reply. Reads for which there is no room are queued, without pages and without a
/// thread: those of one image in order of arrival, the images in turn.
pub(crate) struct Admission {
    budget: Arc<ByteBudget>,
    waiting: Mutex<Turns<Waiting>>,
    waits: AtomicU64,
    /// Calls of `admit` that the thread inside `admit` has not served yet.
    asked: AtomicUsize,
}

/// The reads of one image, as admission sees them.
pub(crate) struct Admissible {
    admission: Arc<Admission>,
    flow: Flow,
    share: Arc<BudgetShare>,
}

/// A queued read.
struct Waiting {
    bytes: u64,
    share: Arc<BudgetShare>,
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
            budget: ByteBudget::divided(budget_bytes),
            waiting: Mutex::default(),
            waits: AtomicU64::new(0),
            asked: AtomicUsize::new(0),
        }
    }

    /// Adds an image, whose reads are `flow`.
    pub(crate) fn of(self: &Arc<Self>, flow: Flow) -> Admissible {
        Admissible { admission: Arc::clone(self), flow, share: self.budget.share() }
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
        let mut reservation = None;
        let next = self.lock().pop_if(|_, first| {
            reservation = first.share.take_now(first.bytes);
            reservation.is_some()
        });
        next.map(|read| (read.begin, Admitted { admission: Arc::clone(self), reservation }))
    }

    fn lock(&self) -> MutexGuard<'_, Turns<Waiting>> {
        self.waiting.lock()
    }
}

impl Admissible {
    /// Admits a read of `bytes` at once. Returns `None` if there is no room or if other reads of the image are queued.
    pub(crate) fn enter(&self, bytes: u64) -> Option<Admitted> {
        let is_free = self.admission.lock().len_of(self.flow) == 0;
        let reservation = is_free.then(|| self.share.take_now(bytes)).flatten()?;
        Some(Admitted { admission: Arc::clone(&self.admission), reservation: Some(reservation) })
    }

    /// Queues a read. `begin` is called once there is room, and hands the read to a thread.
    pub(crate) fn enter_later(&self, bytes: u64, begin: impl FnOnce(Admitted) + Send + 'static) {
        let admission = &self.admission;
        admission.waits.fetch_add(1, Relaxed);
        admission.lock().push(self.flow, Waiting { bytes, share: Arc::clone(&self.share), begin: Box::new(begin) });
        // Room may have become free meanwhile.
        admission.admit();
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
        let admission = Arc::new(Admission::new(120));
        let reads = admission.of(Flow(1));
        let first = reads.enter(80).expect("room");
        let (sender, begun) = mpsc::channel();
        for number in 0..3 {
            assert!(reads.enter(30).is_none());
            let sender = sender.clone();
            reads.enter_later(30, move |admitted| sender.send((number, admitted)).expect("a receiver"));
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
    fn the_queued_reads_of_images_begin_in_turn() {
        let admission = Arc::new(Admission::new(100));
        let images = [1, 2].map(|flow| admission.of(Flow(flow)));
        let held = images.each_ref().map(|image| image.enter(90).expect("the image holds nothing"));
        let (sender, begun) = mpsc::channel();
        for (image, number) in [(0, 0), (0, 1), (0, 2), (1, 3), (1, 4)] {
            let sender = sender.clone();
            images[image].enter_later(90, move |admitted| {
                sender.send(number).expect("a receiver");
                drop(admitted);
            });
        }
        let [of_first, of_second] = held;
        drop(of_second);
        assert_eq!(begun.try_iter().collect::<Vec<_>>(), [3, 4], "the other image's reads wait for its own");
        drop(of_first);
        assert_eq!(begun.try_iter().collect::<Vec<_>>(), [0, 1, 2]);
    }

    #[test]
    fn reads_that_end_as_they_begin_take_no_stack() {
        let admission = Arc::new(Admission::new(1));
        let reads = admission.of(Flow(1));
        let first = reads.enter(1).expect("room");
        for _ in 0..200_000 {
            reads.enter_later(1, drop);
        }
        drop(first);
        assert!(reads.enter(1).is_some());
    }
}
