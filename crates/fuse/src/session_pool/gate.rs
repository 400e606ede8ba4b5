//! Keeps session threads from taking requests of a connection while another process takes it over.

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    thread,
    time::{Duration, Instant},
};

/// The pause between two looks whether threads still take requests.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);

/// The gate of a connection, through which session threads pass when they take a request. They do not wait there.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    is_closed: AtomicBool,
    /// The number of threads that take a request.
    taking: AtomicUsize,
}

impl Gate {
    /// Lets the calling thread take a request with `take`, which must not wait. Returns `None` if the gate is closed.
    pub(crate) fn pass<T>(&self, take: impl FnOnce() -> T) -> Option<T> {
        self.taking.fetch_add(1, SeqCst);
        // `close` stores and loads in the opposite order, so one of the two sees the other.
        let taken = (!self.is_closed()).then(take);
        self.taking.fetch_sub(1, SeqCst);
        taken
    }

    /// Closes the gate. Returns `true` once no thread can take a request any more, or `false` after `patience`.
    pub(crate) fn close(&self, patience: Duration) -> bool {
        self.is_closed.store(true, SeqCst);
        let started = Instant::now();
        while self.taking.load(SeqCst) > 0 {
            if started.elapsed() >= patience {
                return false;
            }
            thread::sleep(LOOK_INTERVAL);
        }
        true
    }

    /// Lets the threads take requests again.
    pub(crate) fn open(&self) {
        self.is_closed.store(false, SeqCst);
    }

    /// Whether the gate is closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn a_closed_gate_waits_for_a_thread_that_takes_a_request_and_lets_none_pass() {
        let gate = Gate::default();
        thread::scope(|scope| {
            let ((taking, is_taking), (end, ending)) = (mpsc::channel(), mpsc::channel::<()>());
            let gate = &gate;
            let taker = scope.spawn(move || {
                gate.pass(|| {
                    taking.send(()).expect("the test runs");
                    ending.recv().expect("the test runs")
                })
            });
            is_taking.recv().expect("it takes one");
            assert!(!gate.close(Duration::ZERO), "this thread could still take a request");
            end.send(()).expect("it waits");
            assert!(gate.close(PATIENCE) && gate.is_closed());
            assert_eq!(taker.join().expect("no panic"), Some(()));
        });
        assert_eq!(gate.pass(|| ()), None);
        gate.open();
        assert_eq!(gate.pass(|| ()), Some(()));
        assert!(gate.close(Duration::ZERO), "nobody takes one");
    }
}
