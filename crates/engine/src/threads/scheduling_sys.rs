//! System calls that schedule threads.

use std::{io, os::unix::thread::JoinHandleExt, thread::JoinHandle};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::Priority;

/// The time slice of a thread with [`Priority::Slice`], in nanoseconds: the least that Linux accepts.
const SLICE_NS: u64 = 100_000;

/// The real-time level of a thread with [`Priority::Auto`].
const AUTO_LEVEL: u8 = 1;

/// `struct sched_attr` of sched_setattr(2), in its first version.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// A thread of this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ThreadId(libc::pid_t);

impl ThreadId {
    /// Returns the calling thread.
    pub(crate) fn current() -> Self {
        Self(rustix::thread::gettid().as_raw_nonzero().get())
    }
}

/// Returns the nice level of a thread.
pub(crate) fn nice_level(thread: ThreadId) -> i8 {
    // SAFETY: the call accesses no memory of this process.
    let level = unsafe { libc::getpriority(libc::PRIO_PROCESS, thread.0.unsigned_abs()) };
    i8::try_from(level).unwrap_or(0)
}

/// Schedules a thread with `priority`, or with the closest alternative that is permitted. Returns the result.
pub(crate) fn schedule(thread: ThreadId, priority: Priority) -> Priority {
    let attempts: &[Priority] = match priority {
        Priority::Auto => &[Priority::Fifo(AUTO_LEVEL), Priority::Nice(-20), Priority::Slice],
        Priority::Fifo(_) => &[priority, Priority::Nice(-20), Priority::Slice],
        Priority::Nice(_) => &[priority, Priority::Slice],
        Priority::Slice => &[priority],
        Priority::Normal => &[],
    };
    attempts.iter().copied().find(|attempt| apply(thread, *attempt).is_ok()).unwrap_or(Priority::Normal)
}

/// The real-time level of a thread with this priority, where the kernel permits it.
pub(crate) fn real_time_level(priority: Priority) -> Option<u8> {
    match priority {
        Priority::Auto => Some(AUTO_LEVEL),
        Priority::Fifo(level) => Some(level),
        Priority::Nice(_) | Priority::Slice | Priority::Normal => None,
    }
}

/// Schedules the calling thread with `priority`, or with the closest alternative that is permitted. Returns the result.
pub fn schedule_this_thread(priority: Priority) -> Priority {
    schedule(ThreadId::current(), priority)
}

/// Schedules the calling thread, whose priority is [`Priority::Auto`]: real-time only while `cpus_are_short`, else with
/// the lowest nice level that is permitted. Returns the result. A real-time thread takes the CPU from the thread that woke it,
/// even if another CPU is idle.
pub fn reschedule_this_thread(cpus_are_short: bool) -> Priority {
    let thread = ThreadId::current();
    if cpus_are_short {
        return schedule(thread, Priority::Auto);
    }
    let _ = set_real_time(thread, None);
    schedule(thread, Priority::Nice(-20))
}

/// Moves a thread to time sharing at a nice level.
pub(crate) fn unschedule(thread: ThreadId, nice_level: i8) {
    let _ = set_real_time(thread, None);
    let _ = set_slice(thread, 0);
    let _ = apply(thread, Priority::Nice(nice_level));
}

/// Makes a thread real-time at `level`, or time-shared if there is none.
pub(crate) fn set_real_time(thread: ThreadId, level: Option<u8>) -> io::Result<()> {
    let policy = if level.is_some() { libc::SCHED_FIFO } else { libc::SCHED_OTHER };
    // The kernel's `struct sched_param`. Not a call of the C library, because musl's always fails.
    let level = libc::c_int::from(level.unwrap_or(0));
    let policy = policy | libc::SCHED_RESET_ON_FORK;
    // SAFETY: `level` lives through the call.
    check_call(unsafe { libc::syscall(libc::SYS_sched_setscheduler, thread.0, policy, &raw const level) })
}

/// Makes a thread real-time before its first turn, if `priority` permits that. Returns whether it is real-time.
///
/// Other programs can keep a time-shared thread from its first turn for tens of milliseconds, so its creator calls this.
pub fn schedule_started_thread(thread: &JoinHandle<()>, priority: Priority) -> bool {
    let Some(level) = real_time_level(priority) else { return false };
    // SAFETY: the structure consists of integers.
    let mut parameters: libc::sched_param = unsafe { std::mem::zeroed() };
    parameters.sched_priority = level.into();
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    let thread = thread.as_pthread_t() as libc::pthread_t;
    // SAFETY: the handle keeps the thread's number valid, even if the thread has ended, and `parameters` live through the call.
    unsafe { libc::pthread_setschedparam(thread, policy, &raw const parameters) == 0 }
}

/// Binds the calling thread to a CPU.
pub(crate) fn bind_this_thread(cpu: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).map_err(io::Error::from)
}

/// Lets the calling thread run on all CPUs of the process. A thread that a bound thread has started is bound too.
pub(crate) fn unbind_this_thread() -> io::Result<()> {
    let set = sched_getaffinity(Some(rustix::process::getpid()))?;
    if sched_getaffinity(None)? != set {
        sched_setaffinity(None, &set)?;
    }
    Ok(())
}

/// The CPUs on which the process may run, in ascending order.
pub(crate) fn allowed_cpus() -> Vec<usize> {
    let process = rustix::process::getpid();
    let set = sched_getaffinity(Some(process)).or_else(|_| sched_getaffinity(None));
    let cpus: Vec<usize> =
        set.map(|set| (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()).unwrap_or_default();
    if cpus.is_empty() { vec![0] } else { cpus }
}

/// The CPU time of the calling thread in nanoseconds.
pub(crate) fn thread_cpu_time_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn apply(thread: ThreadId, priority: Priority) -> io::Result<()> {
    match priority {
        Priority::Fifo(level) => set_real_time(thread, Some(level)),
        Priority::Nice(level) => {
            // SAFETY: the call accesses no memory of this process. With PRIO_PROCESS, Linux accepts a thread in place
            // of a process.
            check(unsafe { libc::setpriority(libc::PRIO_PROCESS, thread.0.unsigned_abs(), level.into()) })
        }
        Priority::Slice => set_slice(thread, SLICE_NS),
        Priority::Auto | Priority::Normal => Ok(()),
    }
}

/// Sets the time slice of a time-shared thread, in nanoseconds; 0 selects the kernel's default.
fn set_slice(thread: ThreadId, slice_ns: u64) -> io::Result<()> {
    let size = size_of::<Attributes>() as u32;
    let nice = nice_level(thread).into();
    let wanted =
        Attributes { size, policy: libc::SCHED_OTHER as u32, nice, runtime: slice_ns, ..Attributes::default() };
    // SAFETY: `wanted` is the structure that the call reads, contains its own size, and lives through the call.
    check_call(unsafe { libc::syscall(libc::SYS_sched_setattr, thread.0, &raw const wanted, 0) })?;
    // Before 6.12, Linux ignores the slice.
    if slice_ns == 0 || slice(thread)? == slice_ns { Ok(()) } else { Err(io::ErrorKind::Unsupported.into()) }
}

/// Returns the time slice of a time-shared thread, in nanoseconds.
fn slice(thread: ThreadId) -> io::Result<u64> {
    let mut found = Attributes::default();
    // SAFETY: `found` is as large as the call is told, and lives through the call.
    check_call(unsafe {
        libc::syscall(libc::SYS_sched_getattr, thread.0, &raw mut found, size_of::<Attributes>(), 0)
    })?;
    Ok(found.runtime)
}

fn check_call(result: libc::c_long) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn check(result: i32) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(all(test, not(miri), not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_real_time_before_its_first_turn() {
        let (sender, receiver) = std::sync::mpsc::channel();
        let started = std::thread::spawn(move || {
            receiver.recv().expect("a message");
            let thread = rustix::thread::gettid().as_raw_nonzero().get();
            // SAFETY: the call accesses no memory of this process.
            let policy = unsafe { libc::syscall(libc::SYS_sched_getscheduler, thread) };
            assert_eq!(policy, libc::c_long::from(libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK));
        });
        for priority in [Priority::Normal, Priority::Nice(-20), Priority::Slice] {
            assert!(!schedule_started_thread(&started, priority), "{priority}");
        }
        if !schedule_started_thread(&started, Priority::Auto) {
            return floe_testkit::skip::skipped("real-time scheduling is not allowed here");
        }
        sender.send(()).expect("it waits");
        started.join().expect("no panic");
    }

    #[test]
    fn a_short_slice_is_set_and_taken_back() {
        let ended = std::thread::spawn(|| {
            let thread = ThreadId::current();
            let before = slice(thread).expect("the thread is there");
            match schedule(thread, Priority::Slice) {
                Priority::Slice => assert_eq!(slice(thread).ok(), Some(SLICE_NS)),
                got => return floe_testkit::skip::skipped(&format!("this kernel has no slices: {got}")),
            }
            unschedule(thread, nice_level(thread));
            assert_eq!(slice(thread).ok(), Some(before));
        });
        ended.join().expect("no panic");
    }
}
