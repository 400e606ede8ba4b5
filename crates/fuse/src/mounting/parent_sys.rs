//! Observes the end of a parent process. Its main thread can end while other threads cannot.

use std::{
    io,
    mem::MaybeUninit,
    os::fd::OwnedFd,
    ptr::{self, NonNull},
    thread,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::retry_on_intr,
    mm::{MapFlags, ProtFlags, mmap_anonymous},
    process::{Pid, PidfdFlags, pidfd_open},
};

/// The time between two attempts to wait, if one fails.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// A mutex in memory that a process shares with its children. The thread that has created it holds it until it ends; the kernel
/// wakes a waiter then (`PTHREAD_MUTEX_ROBUST`). The memory is never unmapped, because the kernel reads it when the thread ends.
///
/// The kernel's parent-death signal (prctl(2)) would serve the same purpose, but does not arrive from a confined
/// parent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LifeLock {
    mutex: NonNull<libc::pthread_mutex_t>,
    holder: Pid,
}

// SAFETY: the mutex is never moved or unmapped, and all threads and processes may use it at the same time.
unsafe impl Send for LifeLock {}
// SAFETY: as above.
unsafe impl Sync for LifeLock {}

/// The parent of this process.
#[derive(Debug)]
pub(crate) struct Parent {
    lock: LifeLock,
    process: OwnedFd,
}

impl LifeLock {
    /// Creates a lock that the calling thread, the main thread of this process, holds until it ends.
    ///
    /// # Errors
    /// There is no memory.
    pub(crate) fn hold() -> io::Result<Self> {
        let (access, len) = (ProtFlags::READ | ProtFlags::WRITE, size_of::<libc::pthread_mutex_t>());
        // SAFETY: a new mapping, aligned to pages. Its bytes are 0.
        let memory = unsafe { mmap_anonymous(ptr::null_mut(), len, access, MapFlags::SHARED)? };
        let mutex = NonNull::new(memory.cast::<libc::pthread_mutex_t>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let mut attributes = MaybeUninit::uninit();
        let attributes = attributes.as_mut_ptr();
        // SAFETY: the attributes are initialized by the first call, and the mutex by the fourth.
        let is_held = unsafe {
            libc::pthread_mutexattr_init(attributes) == 0
                && libc::pthread_mutexattr_setpshared(attributes, libc::PTHREAD_PROCESS_SHARED) == 0
                && libc::pthread_mutexattr_setrobust(attributes, libc::PTHREAD_MUTEX_ROBUST) == 0
                && libc::pthread_mutex_init(mutex.as_ptr(), attributes) == 0
                && libc::pthread_mutex_lock(mutex.as_ptr()) == 0
        };
        let holder = rustix::process::getpid();
        if is_held { Ok(Self { mutex, holder }) } else { Err(io::ErrorKind::Unsupported.into()) }
    }
}

impl Parent {
    /// The parent of this process, whose main thread holds `lock`.
    ///
    /// # Errors
    /// The parent has ended, or the kernel has no descriptors of processes (Linux 5.3).
    pub(crate) fn new(lock: LifeLock) -> io::Result<Self> {
        Ok(Self { lock, process: pidfd_open(lock.holder, PidfdFlags::empty())? })
    }

    /// Waits until the parent's main thread has ended. Only one thread may call this, and only once: it holds the lock from then
    /// on.
    pub(crate) fn wait_for_main_thread(&self) {
        // SAFETY: the mutex is initialized. Its holder never unlocks it, so the call can return EOWNERDEAD only.
        while unsafe { libc::pthread_mutex_lock(self.lock.mutex.as_ptr()) } != libc::EOWNERDEAD {
            thread::sleep(RETRY_INTERVAL);
        }
    }

    /// Waits for at most `time_max` until all threads of the parent have ended. Returns whether they have.
    pub(crate) fn ends_within(&self, time_max: Timespec) -> bool {
        let mut ended = [PollFd::new(&self.process, PollFlags::IN)];
        retry_on_intr(|| poll(&mut ended, Some(&time_max))).is_ok_and(|count| count > 0)
    }
}
