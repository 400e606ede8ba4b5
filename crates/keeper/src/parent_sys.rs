//! Observes the end of a parent process. Its main thread can end while other threads cannot, or while a file cannot be closed.

use std::{
    io,
    mem::offset_of,
    os::fd::OwnedFd,
    ptr::{self, NonNull},
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::retry_on_intr,
    mm::{MapFlags, ProtFlags, mmap_anonymous},
    process::{Pid, PidfdFlags, getpid, pidfd_open},
    thread::{futex, gettid},
};

/// The bit of a robust futex that makes the kernel wake a waiter.
const HAS_WAITERS: u32 = libc::FUTEX_WAITERS;

/// A number in memory that a process shares with its children. When the thread that has created it ends, the kernel changes the
/// number and wakes a waiter, because it is a robust futex that this thread holds (set_robust_list(2)). The memory is never
/// unmapped, because the kernel reads and writes there when the thread ends. The process can write there too, so a child must use
/// it as a number only.
///
/// The kernel's parent-death signal (prctl(2)) comes later, when the process has closed its files, and not from a confined parent.
/// The number of set_tid_address(2) is not changed if the thread is the last one of its process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LifeMark {
    mark: NonNull<Mark>,
    /// The number while the thread lives.
    alive: u32,
    process: Pid,
}

/// The list of the robust futexes of a thread, in the kernel's form: a ring of entries that begins and ends with the head.
#[repr(C)]
#[derive(Debug)]
struct Mark {
    head: RobustListHead,
    /// The only entry.
    entry: RobustList,
    /// The futex, which belongs to the entry.
    number: AtomicU32,
}

/// `struct robust_list_head` of the kernel.
#[repr(C)]
#[derive(Debug)]
struct RobustListHead {
    list: RobustList,
    /// The distance from an entry to its futex.
    futex_offset: libc::c_long,
    list_op_pending: *mut RobustList,
}

/// `struct robust_list` of the kernel.
#[repr(C)]
#[derive(Debug)]
struct RobustList {
    next: *mut RobustList,
}

// SAFETY: the number is never moved or unmapped, and all threads and processes may use it at the same time.
unsafe impl Send for LifeMark {}
// SAFETY: as above.
unsafe impl Sync for LifeMark {}

/// The parent of this process.
#[derive(Debug)]
pub(crate) struct Parent {
    mark: LifeMark,
    process: OwnedFd,
}

impl LifeMark {
    /// Creates the mark of the calling thread, the main thread of this process.
    ///
    /// # Errors
    /// There is no memory.
    pub(crate) fn of_this_thread() -> io::Result<Self> {
        let mark = Mark::new()?;
        Ok(Self { mark, alive: Mark::hold(mark), process: getpid() })
    }

    fn number(&self) -> &AtomicU32 {
        // SAFETY: the number stays mapped, and all accesses to it are atomic.
        unsafe { &(*self.mark.as_ptr()).number }
    }
}

impl Mark {
    /// Creates the memory. Its bytes are 0.
    fn new() -> io::Result<NonNull<Self>> {
        let (access, len) = (ProtFlags::READ | ProtFlags::WRITE, size_of::<Self>());
        // SAFETY: a new mapping, aligned to pages.
        let memory = unsafe { mmap_anonymous(ptr::null_mut(), len, access, MapFlags::SHARED)? };
        NonNull::new(memory.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    /// Makes the calling thread hold the futex. Returns the number until the thread ends.
    fn hold(mark: NonNull<Self>) -> u32 {
        let alive = gettid().as_raw_nonzero().get().cast_unsigned() | HAS_WAITERS;
        let mark = mark.as_ptr();
        // SAFETY: the mapping is large enough, and no other thread uses it yet. It stays mapped. The C library uses its own list
        // only for robust mutexes, which no code of the main thread has.
        unsafe {
            (*mark).head.list.next = &raw mut (*mark).entry;
            (*mark).head.futex_offset = (offset_of!(Self, number) - offset_of!(Self, entry)) as libc::c_long;
            (*mark).entry.next = &raw mut (*mark).head.list;
            (*mark).number.store(alive, Relaxed);
            libc::syscall(libc::SYS_set_robust_list, &raw const (*mark).head, size_of::<RobustListHead>());
        }
        alive
    }
}

impl Parent {
    /// The parent of this process, whose main thread has `mark`.
    ///
    /// # Errors
    /// The parent has ended, or the kernel has no descriptors of processes (Linux 5.3).
    pub(crate) fn new(mark: LifeMark) -> io::Result<Self> {
        Ok(Self { mark, process: pidfd_open(mark.process, PidfdFlags::empty())? })
    }

    /// Waits until the parent's main thread has ended. Other threads may not have ended, and the process may still have open
    /// files.
    pub(crate) fn wait_for_main_thread(&self) {
        let LifeMark { alive, .. } = self.mark;
        while self.mark.number().load(Relaxed) == alive {
            // The result does not matter: the number tells.
            let _ = futex::wait(self.mark.number(), futex::Flags::empty(), alive, None);
        }
    }

    /// Waits until all threads of the parent have ended.
    pub(crate) fn wait_for_end(&self) {
        let mut ended = [PollFd::new(&self.process, PollFlags::IN)];
        let _ = retry_on_intr(|| poll(&mut ended, None));
    }

    /// Waits for at most `time_max` until all threads of the parent have ended. Returns whether they have.
    pub(crate) fn ends_within(&self, time_max: Timespec) -> bool {
        let mut ended = [PollFd::new(&self.process, PollFlags::IN)];
        retry_on_intr(|| poll(&mut ended, Some(&time_max))).is_ok_and(|count| count > 0)
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread, time::Duration};

    use rustix::process::{WaitOptions, waitpid};

    use super::*;

    /// A process with one thread, which ends when the other end of its pipe is closed, with the mark of its thread.
    fn process() -> (LifeMark, OwnedFd) {
        let mark = Mark::new().expect("memory");
        let (ours, theirs) = rustix::pipe::pipe().expect("a pipe");
        // SAFETY: the child uses no memory of other threads, and ends without leaving this block.
        match unsafe { libc::fork() } {
            0 => {
                drop(theirs);
                Mark::hold(mark);
                let _ = rustix::io::read(&ours, &mut [0_u8; 1]);
                // SAFETY: ends the child.
                unsafe { libc::_exit(0) }
            }
            child => {
                let process = Pid::from_raw(child).expect("a child");
                let alive = child.cast_unsigned() | HAS_WAITERS;
                let mark = LifeMark { mark, alive, process };
                while mark.number().load(Relaxed) == 0 {
                    thread::yield_now();
                }
                assert_eq!(mark.number().load(Relaxed), alive);
                (mark, theirs)
            }
        }
    }

    #[test]
    fn the_end_of_the_last_thread_is_seen() {
        let (mark, pipe) = process();
        let parent = Parent::new(mark).expect("it lives");
        let (sender, ended) = mpsc::channel();
        thread::spawn(move || {
            parent.wait_for_main_thread();
            let _ = sender.send(());
        });
        assert!(ended.recv_timeout(Duration::from_millis(200)).is_err(), "it lives");
        drop(pipe);
        let status = waitpid(Some(mark.process), WaitOptions::empty()).expect("our child");
        assert!(status.is_some_and(|(_, status)| status.exit_status() == Some(0)));
        ended.recv_timeout(Duration::from_secs(60)).expect("the end is seen");
    }

    #[test]
    fn the_end_of_one_of_several_threads_is_seen() {
        let (begun, mark) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        let thread = thread::spawn(move || {
            let _ = begun.send(LifeMark::of_this_thread().expect("memory"));
            let _ = ended.recv();
        });
        let mark = mark.recv().expect("a mark");
        assert_eq!(mark.number().load(Relaxed), mark.alive);
        drop(end);
        thread.join().expect("no panic");
        Parent::new(mark).expect("this process").wait_for_main_thread();
        assert_ne!(mark.number().load(Relaxed), mark.alive);
    }
}
