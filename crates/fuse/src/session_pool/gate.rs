//! Keeps session threads from taking requests while another process takes the connection over.

use std::{
    fmt,
    sync::atomic::{
        AtomicBool, AtomicI32,
        Ordering::{Relaxed, SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use floe_sync::{Condvar, Mutex};

use super::interrupt_sys;

/// The pause between two attempts to interrupt threads that wait for requests.
const ATTEMPT_INTERVAL: Duration = Duration::from_millis(1);

/// Every session thread passes the gate before it waits for a request. While the gate is closed, none takes one.
pub(crate) struct Gate {
    is_closed: AtomicBool,
    threads: Box<[ThreadState]>,
    /// Guards nothing: the condition is `is_closed`.
    waiting: Mutex<()>,
    opened: Condvar,
}

/// The state of a session thread at the gate.
#[derive(Default)]
struct ThreadState {
    /// Its thread id.
    id: AtomicI32,
    /// Whether it waits for a request, or is about to.
    is_receiving: AtomicBool,
}

impl Gate {
    /// Creates the gate of `thread_count` session threads.
    pub(crate) fn new(thread_count: usize, is_closed: bool) -> Self {
        Self {
            is_closed: AtomicBool::new(is_closed),
            threads: (0..thread_count).map(|_| ThreadState::default()).collect(),
            waiting: Mutex::new(()),
            opened: Condvar::new(),
        }
    }

    /// Waits while the gate is closed. The calling session thread then waits for a request; afterwards it calls
    /// [`Gate::leave`].
    pub(crate) fn pass(&self, thread: usize) {
        let Some(state) = self.threads.get(thread) else { return };
        state.is_receiving.store(true, SeqCst);
        // `close` stores and loads in the opposite order, so one of the two sees the other.
        while self.is_closed.load(SeqCst) {
            state.is_receiving.store(false, SeqCst);
            let waiting = self.waiting.lock();
            let wait = self.opened.wait_while(waiting, |()| self.is_closed.load(SeqCst));
            drop(wait);
            state.is_receiving.store(true, SeqCst);
        }
    }

    /// Notes that a session thread no longer waits for a request.
    pub(crate) fn leave(&self, thread: usize) {
        if let Some(state) = self.threads.get(thread) {
            state.is_receiving.store(false, SeqCst);
        }
    }

    /// Makes the calling thread a session thread, whose wait for a request [`Gate::close`] can interrupt.
    pub(crate) fn enter(&self, thread: usize) {
        interrupt_sys::handle();
        if let Some(state) = self.threads.get(thread) {
            state.id.store(rustix::thread::gettid().as_raw_nonzero().get(), Relaxed);
        }
    }

    /// Closes the gate, and interrupts the threads that wait for a request. Returns `true` once no thread can take a
    /// request any more, or `false` after `patience`.
    pub(crate) fn close(&self, patience: Duration) -> bool {
        self.is_closed.store(true, SeqCst);
        let started = Instant::now();
        loop {
            let mut is_taking = false;
            for state in &self.threads {
                if state.is_receiving.load(SeqCst) {
                    is_taking = true;
                    // The signal has no effect on a thread that has not begun to wait; the next attempt then reaches
                    // it.
                    interrupt_sys::interrupt(state.id.load(Relaxed));
                }
            }
            if !is_taking {
                return true;
            }
            if started.elapsed() >= patience {
                return false;
            }
            thread::sleep(ATTEMPT_INTERVAL);
        }
    }

    /// Lets the threads take requests again.
    pub(crate) fn open(&self) {
        let _waiting = self.waiting.lock();
        self.is_closed.store(false, SeqCst);
        self.opened.notify_all();
    }

    /// Whether the gate is closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(SeqCst)
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Gate").field("is_closed", &self.is_closed).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Read, os::unix::net::UnixStream, sync::Arc, sync::mpsc};

    use rustix::io::Errno;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn a_closed_gate_interrupts_a_waiting_thread_and_holds_it() {
        let gate = Arc::new(Gate::new(1, false));
        let (ours, theirs) = UnixStream::pair().expect("two sockets");
        let (sender, events) = mpsc::channel();
        let passing = Arc::clone(&gate);
        let thread = thread::spawn(move || {
            passing.enter(0);
            loop {
                passing.pass(0);
                let _ = sender.send("passed");
                let received = rustix::io::read(&theirs, &mut [0; 1]);
                passing.leave(0);
                match received {
                    Err(Errno::INTR) => {}
                    received => return received,
                }
            }
        });
        for _ in 0..100 {
            assert_eq!(events.recv_timeout(PATIENCE), Ok("passed"));
            assert!(gate.close(PATIENCE) && gate.is_closed());
            assert_eq!(events.try_recv().ok(), None, "it passed a closed gate");
            gate.open();
        }
        drop(ours);
        assert_eq!(thread.join().expect("no panic"), Ok(0), "the other end is closed");
    }

    #[test]
    fn a_thread_that_does_not_wait_is_not_waited_for() {
        let gate = Gate::new(1, false);
        gate.enter(0);
        gate.pass(0);
        assert!(!gate.close(Duration::ZERO), "this thread could still take a request");
        gate.leave(0);
        assert!(gate.close(Duration::ZERO));
        // A signal does not disturb reads that restart.
        let (ours, mut theirs) = UnixStream::pair().expect("two sockets");
        drop(ours);
        assert_eq!(theirs.read(&mut [0; 1]).expect("it is closed"), 0);
    }
}
