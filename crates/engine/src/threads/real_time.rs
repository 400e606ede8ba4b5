//! Limits the time that a thread works at real-time priority without a pause.

use std::{
    cell::RefCell,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{scheduling_sys::thread_cpu_time_ns, worker_record::WorkerRecord};

/// A real-time thread that works longer than this without a pause is moved to time sharing, so that it cannot starve
/// the machine. It becomes real-time again at its next pause or, if it serves requests, with its first request after
/// this time.
pub(crate) const REAL_TIME_BUDGET: Duration = Duration::from_millis(50);

/// A real-time thread that was off its CPU for longer than this during a stretch of work was throttled by the kernel or
/// preempted by a higher priority.
const THROTTLED_MIN: Duration = Duration::from_millis(40);

/// A thread that used at least this percentage of the elapsed time as CPU time had no pause.
const BUSY_PERCENT: u32 = 90;

thread_local! {
    static STRETCH: RefCell<Option<Stretch>> = const { RefCell::new(None) };
}

/// A stretch of work of a real-time thread, without a pause.
struct Stretch {
    record: Arc<WorkerRecord>,
    began: Instant,
    began_cpu_time_ns: u64,
    has_yielded: bool,
}

impl Stretch {
    /// Starts a stretch. Returns `None` if the thread is not real-time.
    fn of(record: &Arc<WorkerRecord>) -> Option<Self> {
        record.is_real_time().then(|| Self {
            record: Arc::clone(record),
            began: Instant::now(),
            began_cpu_time_ns: thread_cpu_time_ns(),
            has_yielded: false,
        })
    }

    fn worked(&self) -> Duration {
        Duration::from_nanos(thread_cpu_time_ns().saturating_sub(self.began_cpu_time_ns))
    }

    fn give_up_priority(&mut self) {
        self.note_throttling();
        self.has_yielded = self.record.yield_real_time();
    }

    /// Ends the stretch and makes the thread real-time again.
    fn end(self) {
        if self.has_yielded {
            self.record.restore_real_time();
        } else {
            self.note_throttling();
        }
    }

    fn note_throttling(&self) {
        if self.began.elapsed().saturating_sub(self.worked()) > THROTTLED_MIN {
            self.record.note_throttled();
        }
    }
}

/// Notes that the calling thread begins a piece of work. The work continues the current stretch unless [`pause`] was
/// called in between.
pub(crate) fn begin_work(record: &Arc<WorkerRecord>) {
    STRETCH.with_borrow_mut(|stretch| {
        if stretch.is_none() {
            *stretch = Stretch::of(record);
        }
    });
}

/// Like [`begin_work`], for a thread that does not report its pauses. They are inferred from its CPU time.
pub(crate) fn begin_request(record: &Arc<WorkerRecord>) {
    STRETCH.with_borrow_mut(|stretch| {
        let had_pause = stretch.as_ref().is_some_and(|stretch| {
            let elapsed = stretch.began.elapsed();
            elapsed > REAL_TIME_BUDGET && (stretch.has_yielded || stretch.worked() < elapsed * BUSY_PERCENT / 100)
        });
        if had_pause
            && let Some(ended) = stretch.take()
            && ended.has_yielded
        {
            ended.record.restore_real_time();
        }
        if stretch.is_none() {
            *stretch = Stretch::of(record);
        }
    });
    check(Duration::ZERO);
}

/// Notes that the calling thread is idle.
pub(crate) fn pause() {
    if let Some(stretch) = STRETCH.with_borrow_mut(Option::take) {
        stretch.end();
    }
}

/// Moves the calling thread to time sharing if it has exhausted its budget, or would after `ahead` more. Every loop
/// whose length depends on the image calls this now and then. A call takes some tens of nanoseconds.
pub(crate) fn check(ahead: Duration) {
    STRETCH.with_borrow_mut(|stretch| {
        if let Some(stretch) = stretch
            && !stretch.has_yielded
            && stretch.began.elapsed() + ahead > REAL_TIME_BUDGET
            && stretch.worked() + ahead > REAL_TIME_BUDGET * BUSY_PERCENT / 100
        {
            stretch.give_up_priority();
        }
    });
}

#[cfg(all(test, not(miri), not(feature = "shuttle")))]
mod tests {
    use std::thread;

    use super::*;
    use crate::Priority;

    fn work(time: Duration) {
        let began = Instant::now();
        while began.elapsed() < time {
            std::hint::spin_loop();
        }
    }

    #[test]
    fn a_real_time_thread_that_has_no_pause_is_time_shared_until_it_has_one() {
        let ended = thread::spawn(|| {
            let record = WorkerRecord::new("a thread".to_owned(), None, Priority::Fifo(1), None);
            record.attach();
            if !matches!(record.status().got, Priority::Fifo(_)) {
                return floe_testkit::skip::skipped("real-time scheduling is not allowed here");
            }
            let yielded = || record.status().yielded;
            begin_work(&record);
            check(Duration::ZERO);
            assert_eq!(yielded(), 0);
            check(REAL_TIME_BUDGET);
            assert_eq!(yielded(), 1, "the work ahead would exceed the budget");
            pause();
            for begin in [begin_work, begin_request] {
                let before = yielded();
                begin(&record);
                // Another real-time thread may take the CPU in the meantime.
                work(REAL_TIME_BUDGET * 2);
                check(Duration::ZERO);
                assert_eq!(yielded(), before + 1);
                check(Duration::ZERO);
                assert_eq!(yielded(), before + 1, "the thread is time-shared already");
                pause();
            }
            begin_request(&record);
            let before = yielded();
            thread::sleep(REAL_TIME_BUDGET * 2);
            begin_request(&record);
            assert_eq!(yielded(), before, "the thread had a pause");
        });
        ended.join().expect("no panic");
    }
}
