//! How a thread is scheduled.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::Priority;

/// Schedules the calling thread as `priority` says, or as near to it as is allowed; gives what it got.
pub(crate) fn schedule_this_thread(priority: Priority) -> Priority {
    let attempts: &[Priority] = match priority {
        Priority::Auto => &[Priority::Fifo(1), Priority::Nice(-20)],
        Priority::Fifo(_) => &[priority, Priority::Nice(-20)],
        Priority::Nice(_) => &[priority],
        Priority::Normal => &[],
    };
    attempts.iter().copied().find(|attempt| apply(*attempt).is_ok()).unwrap_or(Priority::Normal)
}

/// Takes a real-time thread back to time sharing, or to real time again.
pub(crate) fn set_real_time(level: Option<u8>) -> io::Result<()> {
    let policy = if level.is_some() { libc::SCHED_FIFO } else { libc::SCHED_OTHER };
    let parameters = libc::sched_param { sched_priority: level.unwrap_or(0).into() };
    // SAFETY: `parameters` lives through the call; 0 names the calling thread.
    check(unsafe { libc::sched_setscheduler(0, policy | libc::SCHED_RESET_ON_FORK, &raw const parameters) })
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

/// How often the calling thread had to leave its CPU to another one.
pub(crate) fn preemption_count() -> i64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `usage` has room for the answer; a `rusage` of zeros is valid too, should the call fail.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init()
    };
    usage.ru_nivcsw
}

fn apply(priority: Priority) -> io::Result<()> {
    match priority {
        Priority::Fifo(level) => set_real_time(Some(level)),
        Priority::Nice(level) => {
            // SAFETY: the call has no memory of ours; with PRIO_PROCESS, Linux takes 0 for the calling thread.
            check(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, level.into()) })
        }
        Priority::Auto | Priority::Normal => Ok(()),
    }
}

fn check(result: i32) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
