//! Child processes that end when this process ends, even if it is killed.
//!
//! The kernel sends the signal when the *thread* that created the child ends. So children are created by threads that
//! live as long as the children are needed.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus};

use rustix::process::{Pid, Signal, WaitOptions};

/// The descriptor of the kept file in a forked child.
const KEPT_FD: RawFd = 3;

/// The resource usage of a finished child.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    /// Minor page faults.
    pub(crate) minor_faults: u64,
    /// Major page faults.
    pub(crate) major_faults: u64,
    /// User CPU time in nanoseconds.
    pub(crate) user_ns: u64,
    /// System CPU time in nanoseconds.
    pub(crate) system_ns: u64,
}

/// A forked child without a program of its own; killed when dropped.
#[derive(Debug)]
pub(crate) struct ForkedChild {
    pid: Pid,
    is_ended: bool,
}

/// Makes the command receive `signal` when the calling thread ends.
pub(crate) fn die_with_parent(command: &mut Command, signal: Signal) -> &mut Command {
    let signal = signal.as_raw();
    let parent = std::process::id();
    // SAFETY: the closure calls only prctl, getppid and getpid, which are async-signal-safe.
    unsafe {
        command.pre_exec(move || {
            if libc::prctl(libc::PR_SET_PDEATHSIG, signal) != 0 {
                return Err(io::Error::last_os_error());
            }
            if libc::getppid().cast_unsigned() != parent {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            Ok(())
        })
    }
}

/// Makes the command start inside the control group whose `cgroup.procs` is given.
pub(crate) fn join_group(command: &mut Command, procs: std::fs::File) -> &mut Command {
    // SAFETY: the closure only writes to an open file, which is async-signal-safe.
    unsafe { command.pre_exec(move || join(procs.as_raw_fd())) }
}

/// Writes "0", which stands for the caller, to a `cgroup.procs`.
fn join(procs: RawFd) -> io::Result<()> {
    // SAFETY: reads one byte of a static string; the descriptor is open.
    let written = unsafe { libc::write(procs, c"0".as_ptr().cast(), 1) };
    if written == 1 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Waits for a child; returns its status and resource usage.
pub(crate) fn wait_with_usage(pid: u32) -> io::Result<(ExitStatus, Usage)> {
    let mut status = 0;
    // SAFETY: rusage consists of numbers, for which zero is valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    loop {
        // SAFETY: both pointers refer to live values of the right type.
        let waited = unsafe { libc::wait4(pid.cast_signed(), &raw mut status, 0, &raw mut usage) };
        if waited >= 0 {
            break;
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    let nanoseconds =
        |time: libc::timeval| time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_usec.cast_unsigned() * 1000;
    let usage = Usage {
        minor_faults: usage.ru_minflt.cast_unsigned(),
        major_faults: usage.ru_majflt.cast_unsigned(),
        user_ns: nanoseconds(usage.ru_utime),
        system_ns: nanoseconds(usage.ru_stime),
    };
    Ok((std::os::unix::process::ExitStatusExt::from_raw(status), usage))
}

impl ForkedChild {
    /// Forks a child in a session of its own that runs `body` until it is killed.
    ///
    /// `body` gets the descriptor of `kept`, the only file that stays open. It must not panic, allocate or take locks:
    /// another thread may hold a lock that is never released in the child.
    pub(crate) fn spawn(name: &CStr, kept: Option<BorrowedFd<'_>>, body: impl FnOnce(RawFd)) -> io::Result<Self> {
        let parent = std::process::id();
        // SAFETY: before `body`, the child calls only async-signal-safe functions; `body` does the same by contract and
        // never returns.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                // SAFETY: system calls on the child's own state; the name is NUL-terminated.
                unsafe {
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                    if libc::getppid().cast_unsigned() != parent {
                        libc::_exit(0);
                    }
                    libc::setsid();
                    libc::signal(libc::SIGTERM, libc::SIG_DFL);
                    libc::signal(libc::SIGINT, libc::SIG_DFL);
                    libc::prctl(libc::PR_SET_NAME, name.as_ptr());
                    if let Some(kept) = kept {
                        libc::dup2(kept.as_raw_fd(), KEPT_FD);
                    }
                    let first_closed = if kept.is_some() { KEPT_FD + 1 } else { KEPT_FD };
                    libc::syscall(libc::SYS_close_range, first_closed, libc::c_uint::MAX, 0);
                    body(KEPT_FD);
                    libc::_exit(0);
                }
            }
            pid => match Pid::from_raw(pid) {
                Some(pid) => Ok(Self { pid, is_ended: false }),
                None => Err(io::Error::from_raw_os_error(libc::ECHILD)),
            },
        }
    }

    /// The process ID.
    pub(crate) fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().cast_unsigned()
    }

    /// Whether it has exited or was killed.
    pub(crate) fn has_ended(&mut self) -> bool {
        if !self.is_ended {
            self.is_ended = !matches!(rustix::process::waitpid(Some(self.pid), WaitOptions::NOHANG), Ok(None));
        }
        self.is_ended
    }
}

impl Drop for ForkedChild {
    fn drop(&mut self) {
        if !self.has_ended() {
            let _ = rustix::process::kill_process(self.pid, Signal::KILL);
            let _ = rustix::process::waitpid(Some(self.pid), WaitOptions::empty());
        }
    }
}

/// Joins the control group whose `cgroup.procs` is open as `procs`, for the body of a [`ForkedChild`].
pub(crate) fn join_group_in_child(procs: RawFd) {
    let _ = join(procs);
}

/// Reads `block.len()` bytes of `kept` at `offset`, for the body of a [`ForkedChild`].
pub(crate) fn read_block(kept: RawFd, block: &mut [u8], offset: u64) -> bool {
    // SAFETY: the buffer is live and has the given length.
    let length = unsafe { libc::pread(kept, block.as_mut_ptr().cast(), block.len(), offset.cast_signed()) };
    length > 0
}

/// Touches every page of a fresh mapping and unmaps it, for the body of a [`ForkedChild`].
pub(crate) fn touch_fresh_pages(size_bytes: usize, page_bytes: usize) -> bool {
    // SAFETY: an anonymous mapping of our own, accessed within its bounds and unmapped again.
    unsafe {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let start = libc::mmap(std::ptr::null_mut(), size_bytes, access, flags, -1, 0);
        if start == libc::MAP_FAILED {
            return false;
        }
        for offset in (0..size_bytes).step_by(page_bytes) {
            start.cast::<u8>().add(offset).write_volatile(1);
        }
        libc::munmap(start, size_bytes) == 0
    }
}

/// Waits for a byte from the other end of `kept`, for the body of a [`ForkedChild`]; returns false if it is closed.
pub(crate) fn receive_byte(kept: RawFd) -> bool {
    let mut byte = 0_u8;
    // SAFETY: writes one byte of a live value.
    unsafe { libc::read(kept, (&raw mut byte).cast(), 1) == 1 }
}

/// Sends a number to the other end of `kept`, for the body of a [`ForkedChild`]; returns false if it is closed.
pub(crate) fn send_number(kept: RawFd, number: u64) -> bool {
    let bytes = number.to_ne_bytes();
    // SAFETY: reads the bytes of a live value.
    unsafe { libc::send(kept, bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL) == 8 }
}
