//! Interrupts the system call of one thread of this process.

use std::{ptr, sync::Once};

/// Ignored by default, so a stray one does no harm.
const SIGNAL: i32 = libc::SIGURG;

/// Makes the signal interrupt system calls instead of being ignored.
pub(super) fn handle() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: all zero bytes are a valid `sigaction`: no flags, so that calls are not restarted, and an empty mask.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = on_signal as extern "C" fn(i32) as usize;
        // SAFETY: the handler does nothing, so it may run at any point of any thread.
        unsafe { libc::sigaction(SIGNAL, &raw const action, ptr::null_mut()) };
    });
}

extern "C" fn on_signal(_signal: i32) {}

/// Interrupts the call in which the thread with this id waits, if it waits in one.
pub(super) fn interrupt(thread: i32) {
    let process = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: sends a signal, which has a handler, to a thread of this process. If the thread has ended, the call fails.
    unsafe { libc::syscall(libc::SYS_tgkill, process, thread, SIGNAL) };
}
