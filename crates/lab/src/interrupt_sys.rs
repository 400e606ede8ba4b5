//! Interruption by a signal, honoured at the next safe point.

use std::sync::atomic::{AtomicBool, Ordering};

/// Set by the first signal. Signal handlers access nothing else.
static REQUESTED: AtomicBool = AtomicBool::new(false);

const SIGNALS: [libc::c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// Handles Ctrl-C and similar signals while it exists; the second signal ends the process as by default.
#[derive(Debug)]
pub struct Interrupt(());

impl Interrupt {
    /// Installs the handlers.
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

    /// Whether a signal has arrived.
    pub fn is_requested(&self) -> bool {
        REQUESTED.load(Ordering::SeqCst)
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        for signal in SIGNALS {
            // SAFETY: restores the default action of the signal.
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
        let is_noted = (0..10_000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(1));
            interrupt.is_requested()
        });
        assert!(is_noted);
    }
}
