//! Chooses how many session threads listen for requests.

use std::sync::{
    Arc,
    atomic::{
        AtomicUsize,
        Ordering::{Relaxed, SeqCst},
    },
};

use floe_engine::MovingShare;
use floe_sync::{Condvar, Mutex};

use super::{arrivals::Arrivals, lone_caller::LoneCaller};

/// One request in this many looks whether others wait behind it, which takes a system call.
const LOOK_INTERVAL: usize = 4;

/// The number of looks over which the moving average of [`Listeners::note`] extends.
const AVERAGED_LOOKS: u32 = 16;

/// All threads listen once at least this share of the looked at requests had others waiting behind them.
const CROWDED: u32 = MovingShare::WHOLE / 2;

/// Lets one session thread listen as long as one is enough, and all of them if requests queue up.
///
/// If several threads listened, the kernel would wake them in turn or together. If requests come one after the other, each would
/// wake another sleeping CPU with cold caches. The other threads therefore rest: they sleep on a condition variable, where the
/// kernel does not see them as listeners.
///
/// A thread rests only while another one listens. If that one takes a request and is stuck with it, the watchdog, which is
/// awake while requests are in progress, wakes a resting thread to listen ([`Listeners::replace`]). While nothing is in
/// progress, no thread wakes up.
pub(crate) struct Listeners {
    arrivals: Arc<Arrivals>,
    thread_count: AtomicUsize,
    serving: AtomicUsize,
    begun: AtomicUsize,
    resting: Mutex<Resting>,
    needed: Condvar,
    crowded_share: MovingShare,
}

#[derive(Default)]
struct Resting {
    /// The number of threads that rest.
    count: usize,
    /// How many of them are to wake up.
    woken: usize,
    /// Whether no thread may rest any more.
    is_over: bool,
}

impl Resting {
    /// The number of threads that rest and are not to wake up.
    fn asleep(&self) -> usize {
        self.count - self.woken
    }
}

impl Listeners {
    /// Creates the state of a pool without threads.
    pub(crate) fn new(arrivals: Arc<Arrivals>) -> Self {
        Self {
            arrivals,
            thread_count: AtomicUsize::new(0),
            serving: AtomicUsize::new(0),
            begun: AtomicUsize::new(0),
            resting: Mutex::default(),
            needed: Condvar::new(),
            crowded_share: MovingShare::new(AVERAGED_LOOKS, 0),
        }
    }

    /// Notes that one more thread listens. Returns its number.
    pub(crate) fn add(&self) -> usize {
        self.thread_count.fetch_add(1, Relaxed)
    }

    /// Notes that the thread that was added last could not be started.
    pub(crate) fn remove(&self) {
        self.thread_count.fetch_sub(1, Relaxed);
    }

    /// The number of threads.
    pub(crate) fn thread_count(&self) -> usize {
        self.thread_count.load(Relaxed)
    }

    /// Notes that the calling thread serves a request.
    pub(crate) fn begin(&self) {
        self.serving.fetch_add(1, SeqCst);
        if self.thread_count() > 1 && self.begun.fetch_add(1, Relaxed).is_multiple_of(LOOK_INTERVAL) {
            self.note(self.arrivals.is_readable());
        }
    }

    /// Notes that the calling thread has finished its request.
    pub(crate) fn end(&self) {
        self.serving.fetch_sub(1, SeqCst);
    }

    /// The number of threads that serve requests.
    pub(crate) fn serving_count(&self) -> usize {
        self.serving.load(SeqCst)
    }

    /// Whether the calling thread, which has no request, should rest.
    pub(crate) fn should_rest(&self) -> bool {
        self.thread_count() > 1 && !self.is_crowded() && self.another_listens(&self.resting.lock())
    }

    /// Rests if another thread listens. Returns when the calling thread should listen.
    pub(crate) fn rest(&self) {
        if self.thread_count() == 1 || self.is_crowded() {
            return;
        }
        let mut resting = self.resting.lock();
        if !self.another_listens(&resting) {
            return;
        }
        resting.count += 1;
        let mut resting = self.needed.wait_while(resting, |resting| resting.woken == 0 && !resting.is_over);
        resting.woken = resting.woken.saturating_sub(1);
        resting.count -= 1;
    }

    /// Wakes a resting thread to listen, if no thread listens. Called by a thread that serves a request and is about to
    /// block on the source.
    ///
    /// While a lone caller waits, no thread is woken: it would find nothing to do, and from then on the kernel would wake it for
    /// each request of the caller. If another caller comes meanwhile, the watchdog finds that no thread listens.
    pub(crate) fn promote(&self, lone_caller: &LoneCaller) {
        if !lone_caller.is_waiting() {
            self.replace();
        }
    }

    /// Wakes a resting thread to listen, if no thread listens.
    pub(crate) fn replace(&self) {
        let mut resting = self.resting.lock();
        if self.serving_count() + resting.asleep() >= self.thread_count() {
            self.wake(&mut resting, 1);
        }
    }

    /// Wakes all resting threads, because requests may come from anywhere.
    pub(crate) fn wake_all(&self) {
        self.wake(&mut self.resting.lock(), usize::MAX);
    }

    /// Wakes all resting threads, and lets none rest from now on.
    pub(crate) fn end_all(&self) {
        self.resting.lock().is_over = true;
        self.needed.notify_all();
    }

    fn wake(&self, resting: &mut Resting, count: usize) {
        let woken = resting.asleep().min(count);
        resting.woken += woken;
        (0..woken).for_each(|_| self.needed.notify_one());
    }

    /// Whether another thread than the calling one, which has no request, listens or is about to.
    fn another_listens(&self, resting: &Resting) -> bool {
        self.thread_count() > self.serving_count() + resting.asleep() + 1 && !resting.is_over
    }

    fn is_crowded(&self) -> bool {
        self.crowded_share.get() >= CROWDED
    }

    /// Updates the share of requests behind which others waited. Wakes a resting thread if that share is high.
    fn note(&self, others_wait: bool) {
        self.crowded_share.note(others_wait);
        if others_wait && self.is_crowded() {
            self.wake(&mut self.resting.lock(), 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{thread, time::Duration};

    use super::*;

    fn listeners(thread_count: usize) -> Arc<Listeners> {
        let listeners = Listeners::new(Arc::new(Arrivals::new().expect("two descriptors")));
        (0..thread_count).for_each(|_| _ = listeners.add());
        Arc::new(listeners)
    }

    fn resting_count(listeners: &Listeners) -> usize {
        listeners.resting.lock().asleep()
    }

    /// Starts a thread that rests.
    fn rest(listeners: &Arc<Listeners>) -> thread::JoinHandle<()> {
        let (before, resting) = (resting_count(listeners), Arc::clone(listeners));
        let rests = thread::spawn(move || resting.rest());
        while resting_count(listeners) == before {
            assert!(!rests.is_finished(), "it does not rest");
            thread::yield_now();
        }
        rests
    }

    #[test]
    fn the_last_thread_that_listens_does_not_rest() {
        let listeners = listeners(2);
        listeners.begin();
        assert!(!listeners.should_rest(), "the other one serves");
        listeners.rest();
        listeners.end();
        assert!(listeners.should_rest());
        let rests = rest(&listeners);
        assert!(!listeners.should_rest(), "the other one rests");
        listeners.rest();
        assert!(!rests.is_finished());
        listeners.wake_all();
        rests.join().expect("no panic");
    }

    #[test]
    fn a_thread_that_waits_promotes_a_resting_one_if_none_listens() {
        let listeners = listeners(3);
        let rests = rest(&listeners);
        listeners.begin();
        listeners.promote(&LoneCaller::default());
        assert_eq!(resting_count(&listeners), 1, "the third one listens");
        listeners.begin();
        listeners.promote(&LoneCaller::default());
        rests.join().expect("it is promoted");
        listeners.promote(&LoneCaller::default());
        assert_eq!(resting_count(&listeners), 0);
    }

    #[test]
    fn a_lone_caller_that_waits_wakes_no_resting_thread_but_the_watchdog_does() {
        let (listeners, lone_caller) = (listeners(2), LoneCaller::default());
        assert!((0..100).all(|request| lone_caller.note(7, true) == (request > 0)));
        let rests = rest(&listeners);
        listeners.begin();
        listeners.promote(&lone_caller);
        assert_eq!(resting_count(&listeners), 1, "it has nothing to do");
        listeners.replace();
        rests.join().expect("no panic");
    }

    #[test]
    fn under_load_no_thread_rests_and_resting_ones_are_woken() {
        let listeners = listeners(3);
        let rests = rest(&listeners);
        (0..AVERAGED_LOOKS).for_each(|_| listeners.note(true));
        rests.join().expect("no panic");
        assert!(!listeners.should_rest());
        listeners.rest();
        (0..AVERAGED_LOOKS).for_each(|_| listeners.note(false));
        assert!(listeners.should_rest());
    }

    #[test]
    fn at_the_end_resting_threads_are_woken_and_none_rests_again() {
        let listeners = listeners(8);
        let resting: Vec<_> = (0..4).map(|_| rest(&listeners)).collect();
        listeners.end_all();
        resting.into_iter().for_each(|thread| thread.join().expect("no panic"));
        listeners.rest();
    }

    #[test]
    fn a_single_thread_never_rests() {
        let listeners = listeners(1);
        listeners.begin();
        listeners.end();
        listeners.rest();
    }

    #[test]
    fn one_thread_listens_whatever_others_do() {
        let listeners = listeners(4);
        thread::scope(|scope| {
            let threads: Vec<_> = (0..4u64)
                .map(|number| {
                    let listeners = &listeners;
                    scope.spawn(move || {
                        for round in 0..2000u64 {
                            listeners.begin();
                            if (round + number).is_multiple_of(7) {
                                listeners.replace();
                            }
                            listeners.end();
                            listeners.rest();
                        }
                        // A thread that ends never rests, so the others take its place only if they are woken.
                        listeners.begin();
                        listeners.replace();
                    })
                })
                .collect();
            while threads.iter().any(|thread| !thread.is_finished()) {
                assert!(resting_count(&listeners) < 4, "nobody listens");
                thread::sleep(Duration::from_micros(50));
            }
        });
    }
}
