//! The priority of work that can wait.

use std::io;

/// The arguments of ioprio_set(2): one thread, and the class of those that get the disk when no other one wants it.
const IOPRIO_WHO_PROCESS: libc::c_int = 1;
const IOPRIO_CLASS_IDLE: libc::c_int = 3 << 13;

/// Lets the calling thread, and threads and processes that it starts from now on, run only when CPUs and disks have nothing else to do.
///
/// # Errors
/// The kernel refuses.
pub fn run_when_idle() -> io::Result<()> {
    // The kernel's `struct sched_param`. Not a call of the C library, because musl's always fails.
    let priority: libc::c_int = 0;
    // SAFETY: the kernel reads a number, which lives through the call; 0 is the calling thread.
    check(unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, libc::SCHED_IDLE, &raw const priority) })?;
    // SAFETY: the arguments are numbers; 0 is the calling thread.
    check(unsafe { libc::syscall(libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, IOPRIO_CLASS_IDLE) })
}

fn check(result: libc::c_long) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
