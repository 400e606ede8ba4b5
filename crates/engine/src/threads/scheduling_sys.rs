//! How a thread is scheduled.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::Priority;

/// A thread of this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ThreadId(libc::pid_t);

impl ThreadId {
    /// The calling thread.
    pub(crate) fn current() -> Self {
        Self(rustix::thread::gettid().as_raw_nonzero().get())
    }
}

/// The nice level of a thread.
pub(crate) fn nice_level(thread: ThreadId) -> i8 {
    // SAFETY: the call has no memory of ours.
    let level = unsafe { libc::getpriority(libc::PRIO_PROCESS, thread.0.unsigned_abs()) };
    i8::try_from(level).unwrap_or(0)
}

/// Schedules a thread as `priority` says, or as near to it as is allowed; gives what it got.
pub(crate) fn schedule(thread: ThreadId, priority: Priority) -> Priority {
    let attempts: &[Priority] = match priority {
        Priority::Auto => &[Priority::Fifo(1), Priority::Nice(-20)],
        Priority::Fifo(_) => &[priority, Priority::Nice(-20)],
        Priority::Nice(_) => &[priority],
        Priority::Normal => &[],
    };
    attempts.iter().copied().find(|attempt| apply(thread, *attempt).is_ok()).unwrap_or(Priority::Normal)
}

/// Takes a thread back to time sharing at a nice level.
pub(crate) fn unschedule(thread: ThreadId, nice_level: i8) {
    let _ = set_real_time(thread, None);
    let _ = apply(thread, Priority::Nice(nice_level));
}

/// Takes a real-time thread back to time sharing, or to real time again.
pub(crate) fn set_real_time(thread: ThreadId, level: Option<u8>) -> io::Result<()> {
    let policy = if level.is_some() { libc::SCHED_FIFO } else { libc::SCHED_OTHER };
    let parameters = libc::sched_param { sched_priority: level.unwrap_or(0).into() };
    // SAFETY: `parameters` lives through the call.
    check(unsafe { libc::sched_setscheduler(thread.0, policy | libc::SCHED_RESET_ON_FORK, &raw const parameters) })
}

/// Binds the calling thread to one CPU.
pub(crate) fn bind_this_thread(cpu: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).map_err(io::Error::from)
}

/// The CPUs that the process may run on, in order.
pub(crate) fn allowed_cpus() -> Vec<usize> {
    let process = rustix::process::getpid();
    let set = sched_getaffinity(Some(process)).or_else(|_| sched_getaffinity(None));
    let cpus: Vec<usize> =
        set.map(|set| (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()).unwrap_or_default();
    if cpus.is_empty() { vec![0] } else { cpus }
}

/// The CPU time that the calling thread has used, in nanoseconds.
pub(crate) fn thread_cpu_time_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn apply(thread: ThreadId, priority: Priority) -> io::Result<()> {
    match priority {
        Priority::Fifo(level) => set_real_time(thread, Some(level)),
        Priority::Nice(level) => {
            // SAFETY: the call has no memory of ours; with PRIO_PROCESS, Linux takes a thread for a process.
            check(unsafe { libc::setpriority(libc::PRIO_PROCESS, thread.0.unsigned_abs(), level.into()) })
        }
        Priority::Auto | Priority::Normal => Ok(()),
    }
}

fn check(result: i32) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
