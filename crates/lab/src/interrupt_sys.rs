//! A request to end, by a key or a signal, that is obeyed at the next safe point.

use std::sync::atomic::{AtomicBool, Ordering};

/// Set by the first signal. Signal handlers reach nothing else.
static REQUESTED: AtomicBool = AtomicBool::new(false);

const SIGNALS: [libc::c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// Listens for Ctrl-C and its like while it lives; the second one ends the process as if nobody listened.
#[derive(Debug)]
pub struct Interrupt(());

impl Interrupt {
    /// Begins to listen.
    pub fn listen() -> Self {
        REQUESTED.store(false, Ordering::SeqCst);
        for signal in SIGNALS {
            // SAFETY: sigaction is plain data, for which zero is valid, and the handler is async-signal-safe.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = note as extern "C" fn(libc::c_int) as libc::sighandler_t;
                action.sa_flags = libc::SA_RESETHAND;
                libc::sigaction(signal, &raw const action, std::ptr::null_mut());
            }
        }
        Self(())
    }

    /// Whether the end was asked for.
    pub fn is_requested(&self) -> bool {
        REQUESTED.load(Ordering::SeqCst)
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        for signal in SIGNALS {
            // SAFETY: gives the signal its default meaning back.
            unsafe {
                libc::signal(signal, libc::SIG_DFL);
            }
        }
    }
}

extern "C" fn note(_signal: libc::c_int) {
    REQUESTED.store(true, Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_noted() {
        let interrupt = Interrupt::listen();
        assert!(!interrupt.is_requested());
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::HUP).unwrap();
        for _ in 0..100 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert!(interrupt.is_requested());
    }
}
