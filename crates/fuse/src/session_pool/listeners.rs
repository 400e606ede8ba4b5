//! Chooses how many session threads listen for requests.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use floe_engine::MovingShare;
use floe_sync::{Condvar, Mutex};

use super::lone_caller::LoneCaller;
use crate::connection::Pending;

/// A resting thread listens again after this time at the latest. Resting therefore cannot lose a request, and in an
/// idle mount all threads listen.
const REST: Duration = Duration::from_millis(50);

/// One request in this many looks whether others wait behind it, which takes a system call.
const LOOK_INTERVAL: usize = 4;

/// The number of looks over which the moving average of [`Listeners::note`] extends.
const AVERAGED_LOOKS: u32 = 16;

/// All threads listen once at least this share of the looked at requests had others waiting behind them.
const CROWDED: u32 = MovingShare::WHOLE / 2;

/// Lets one session thread listen as long as one is enough, and all of them if requests queue up.
///
/// The kernel wakes listening threads in turn. If requests come one after the other, each would wake another sleeping
/// CPU with cold caches. The other threads therefore rest: they sleep on a condition variable, where the kernel does
/// not see them as listeners.
pub(crate) struct Listeners {
    thread_count: usize,
    pending: Arc<Pending>,
    serving: AtomicUsize,
    begun: AtomicUsize,
    resting: Mutex<usize>,
    needed: Condvar,
    /// Set once the connection has ended. Changes only while `resting` is locked.
    is_over: AtomicBool,
    rest: Duration,
    crowded_share: MovingShare,
}

impl Listeners {
    /// Creates the state of `thread_count` threads, all of which listen at first.
    pub(crate) fn new(thread_count: usize, pending: Arc<Pending>) -> Self {
        Self {
            thread_count,
            pending,
            serving: AtomicUsize::new(0),
            begun: AtomicUsize::new(0),
            resting: Mutex::new(0),
            needed: Condvar::new(),
            is_over: AtomicBool::new(false),
            rest: REST,
            crowded_share: MovingShare::new(AVERAGED_LOOKS, 0),
        }
    }

    /// Notes that the calling thread serves a request.
    pub(crate) fn begin(&self) {
        self.serving.fetch_add(1, Relaxed);
        if self.thread_count > 1
            && self.begun.fetch_add(1, Relaxed).is_multiple_of(LOOK_INTERVAL)
            && let Some(others_wait) = self.pending.is_readable()
        {
            self.note(others_wait);
        }
    }

    /// Notes that the calling thread has finished its request. Returns when the thread should listen: at once if there
    /// `is_another` request already.
    pub(crate) fn end(&self, is_another: bool) {
        self.serving.fetch_sub(1, Relaxed);
        if is_another || self.thread_count == 1 || self.is_crowded() {
            return;
        }
        let mut resting = self.resting.lock();
        let others = self.thread_count.saturating_sub(self.serving.load(Relaxed) + *resting + 1);
        if others == 0 || self.is_over.load(Relaxed) {
            return;
        }
        *resting += 1;
        // A thread that is woken without need listens for a while; that does no harm.
        let (mut resting, _) = self.needed.wait_timeout(resting, self.rest);
        *resting -= 1;
    }

    /// Wakes a resting thread to listen, if no thread listens. Called by a thread that serves a request and is about to
    /// block on the source.
    ///
    /// While a lone caller waits, no thread is woken: it would find nothing to do, and from then on the kernel would wake it for
    /// each request of the caller. If another caller comes meanwhile, a resting thread takes its request after its rest.
    pub(crate) fn promote(&self, lone_caller: &LoneCaller) {
        if lone_caller.is_waiting() {
            return;
        }
        let resting = *self.resting.lock();
        if resting > 0 && self.serving.load(Relaxed) + resting >= self.thread_count {
            self.needed.notify_one();
        }
    }

    /// Wakes all resting threads, and lets none rest from now on: the connection has ended, and each thread has to notice it.
    pub(crate) fn end_all(&self) {
        let resting = self.resting.lock();
        self.is_over.store(true, Relaxed);
        drop(resting);
        self.needed.notify_all();
    }

    fn is_crowded(&self) -> bool {
        self.crowded_share.get() >= CROWDED
    }

    /// Updates the share of requests behind which others waited. Wakes a resting thread if that share is high.
    fn note(&self, others_wait: bool) {
        self.crowded_share.note(others_wait);
        if others_wait && self.is_crowded() && *self.resting.lock() > 0 {
            self.needed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{thread, time::Instant};

    use super::*;

    /// Longer than a busy machine keeps a thread from running.
    const REST: Duration = Duration::from_millis(500);

    fn listeners(thread_count: usize) -> Arc<Listeners> {
        Arc::new(Listeners { rest: REST, ..Listeners::new(thread_count, Arc::default()) })
    }

    /// Starts a thread that rests.
    fn rest(listeners: &Arc<Listeners>) -> thread::JoinHandle<Duration> {
        let resting = Arc::clone(listeners);
        let rests = thread::spawn(move || {
            resting.begin();
            let began = Instant::now();
            resting.end(false);
            began.elapsed()
        });
        while *listeners.resting.lock() == 0 && !rests.is_finished() {
            thread::yield_now();
        }
        rests
    }

    #[test]
    fn the_last_thread_that_listens_does_not_rest() {
        let listeners = listeners(2);
        listeners.begin();
        listeners.begin();
        let began = Instant::now();
        listeners.end(false);
        assert!(began.elapsed() < REST, "the other one serves");
        listeners.end(true);
        let rests = rest(&listeners);
        listeners.begin();
        let began = Instant::now();
        listeners.end(false);
        assert!(began.elapsed() < REST || rests.is_finished(), "the other one rests");
        rests.join().expect("no panic");
    }

    #[test]
    fn a_thread_that_waits_promotes_a_resting_one_if_none_listens() {
        let listeners = listeners(3);
        let rests = rest(&listeners);
        listeners.begin();
        listeners.promote(&LoneCaller::default());
        assert!(rests.join().expect("no panic") >= REST, "the third one listens");
        // Again, but now the third thread serves too.
        for _ in 0..20 {
            let rests = self::rest(&listeners);
            listeners.begin();
            listeners.promote(&LoneCaller::default());
            let rested = rests.join().expect("no panic");
            listeners.end(true);
            if rested < REST {
                return;
            }
        }
        panic!("nobody was promoted");
    }

    #[test]
    fn a_lone_caller_that_waits_wakes_no_resting_thread() {
        let (listeners, lone_caller) = (listeners(2), LoneCaller::default());
        assert!((0..100).all(|request| lone_caller.note(7, true) == (request > 0)));
        let rests = rest(&listeners);
        listeners.begin();
        listeners.promote(&lone_caller);
        assert!(rests.join().expect("no panic") >= REST, "it has nothing to do");
    }

    #[test]
    fn under_load_no_thread_rests_and_resting_ones_are_woken() {
        let listeners = listeners(3);
        let rests = rest(&listeners);
        (0..AVERAGED_LOOKS).for_each(|_| listeners.note(true));
        rests.join().expect("no panic");
        let began = Instant::now();
        for _ in 0..1000 {
            listeners.begin();
            listeners.end(false);
        }
        assert!(began.elapsed() < REST * 100, "none of them rested");
        (0..AVERAGED_LOOKS).for_each(|_| listeners.note(false));
        assert!(!listeners.is_crowded());
    }

    #[test]
    fn at_the_end_resting_threads_are_woken_and_none_rests_again() {
        let listeners = listeners(8);
        let resting: Vec<_> = (0..4).map(|_| rest(&listeners)).collect();
        listeners.end_all();
        let rested: Vec<_> = resting.into_iter().map(|thread| thread.join().expect("no panic")).collect();
        assert!(rested.iter().any(|rested| *rested < REST), "{rested:?}");
        let began = Instant::now();
        for _ in 0..1000 {
            listeners.begin();
            listeners.end(false);
        }
        assert!(began.elapsed() < REST * 100, "none of them rested");
    }

    #[test]
    fn a_single_thread_never_rests() {
        let listeners = listeners(1);
        listeners.begin();
        let began = Instant::now();
        listeners.end(false);
        assert!(began.elapsed() < REST);
    }
}
