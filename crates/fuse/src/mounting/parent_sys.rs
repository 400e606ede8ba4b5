//! Observes the end of a parent process. Its main thread can end while other threads cannot.

use std::{
    io,
    os::fd::OwnedFd,
    ptr::{self, NonNull},
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::retry_on_intr,
    mm::{MapFlags, ProtFlags, mmap_anonymous},
    process::{Pid, PidfdFlags, getpid, pidfd_open},
    thread::futex,
};

/// The value of a [`LifeMark`] while its thread lives.
const LIVES: u32 = 1;

/// A number in memory that a process shares with its children. When the thread that has created it ends and others of its
/// process do not, the kernel sets it to 0 and wakes a waiter (set_tid_address(2)). The memory is never unmapped, because the
/// kernel writes there when the thread ends. The process can write there too, so a child must use it as a number only.
///
/// The kernel's parent-death signal (prctl(2)) would serve the same purpose, but does not arrive from a confined
/// parent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LifeMark {
    mark: NonNull<AtomicU32>,
    process: Pid,
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
        let (access, len) = (ProtFlags::READ | ProtFlags::WRITE, size_of::<AtomicU32>());
        // SAFETY: a new mapping, aligned to pages. Its bytes are 0.
        let memory = unsafe { mmap_anonymous(ptr::null_mut(), len, access, MapFlags::SHARED)? };
        let mark = NonNull::new(memory.cast::<AtomicU32>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let this = Self { mark, process: getpid() };
        this.get().store(LIVES, Relaxed);
        // SAFETY: the number stays mapped. The C library uses this address to join threads, and nobody joins the main thread.
        unsafe { libc::syscall(libc::SYS_set_tid_address, mark.as_ptr()) };
        Ok(this)
    }

    fn get(&self) -> &AtomicU32 {
        // SAFETY: the number stays mapped, and all accesses to it are atomic.
        unsafe { self.mark.as_ref() }
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

    /// Waits until the parent's main thread has ended and another one has not. If no thread is left, this does not return.
    pub(crate) fn wait_for_main_thread(&self) {
        while self.mark.get().load(Relaxed) == LIVES {
            // The result does not matter: the number tells.
            let _ = futex::wait(self.mark.get(), futex::Flags::empty(), LIVES, None);
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
