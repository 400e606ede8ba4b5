//! Forks a child process that runs a function.

use std::{
    ffi::CStr,
    fs::File,
    io,
    os::{
        fd::{IntoRawFd, RawFd},
        unix::fs::FileExt,
    },
    panic::{AssertUnwindSafe, catch_unwind},
};

use floe_image::start_error;
use rustix::process::Pid;

/// The signals that the child ignores, because it must outlive its parent: those of a terminal and of `kill`.
const IGNORED: [i32; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

/// The highest descriptor that is closed if the kernel has no `close_range`.
const OPEN_MAX: i32 = 1 << 16;

/// Forks, and runs `work` in the child, which has this name and only the descriptors `kept` and exits after `work`. Returns
/// the child's process id.
///
/// # Errors
/// Other threads run, whose locks the child would inherit, or no process can be created.
pub(crate) fn fork(name: &CStr, kept: &[RawFd], work: impl FnOnce()) -> io::Result<Pid> {
    if std::fs::read_dir("/proc/self/task").is_ok_and(|tasks| tasks.count() > 1) {
        return Err(io::Error::other("other threads are already running"));
    }
    // SAFETY: no other thread runs, so the child finds all locks free and all memory whole.
    match unsafe { libc::fork() } {
        -1 => Err(start_error(io::Error::last_os_error())),
        0 => {
            // A panic must not unwind into the parent's code.
            let _ = catch_unwind(AssertUnwindSafe(|| {
                if keep_only(name, kept).is_ok() {
                    work();
                }
            }));
            // SAFETY: ends the child without exit handlers and without flushing buffers, both of which belong to the parent.
            unsafe { libc::_exit(0) }
        }
        child => Pid::from_raw(child).ok_or_else(|| io::ErrorKind::InvalidData.into()),
    }
}

/// Leaves the terminal and the working directory, and closes all descriptors but `kept`.
///
/// # Errors
/// Nothing can be opened that takes the place of the parent's standard descriptors. A process that kept those would keep
/// the readers of the parent's output waiting.
fn keep_only(name: &CStr, kept: &[RawFd]) -> io::Result<()> {
    let _ = std::env::set_current_dir("/");
    let _ = rustix::thread::set_name(name);
    rename_in_listings(name);
    for signal in IGNORED {
        // SAFETY: no handler of ours is involved.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    let mut numbers = kept.to_vec();
    numbers.sort_unstable();
    let mut first = 3;
    for number in numbers {
        close_all(first, number - 1);
        first = number + 1;
    }
    close_all(first, i32::MAX);
    // After the parent's descriptors are closed, the limit of open files leaves room for one more.
    // It stays open: it may be one of the standard descriptors.
    // Where there is no /dev/null, a directory takes its place, which can be neither read nor written as a file.
    let null = File::options().read(true).write(true).open("/dev/null");
    let nowhere = null.or_else(|_| File::open("/"))?.into_raw_fd();
    for standard in 0..=2 {
        // SAFETY: replaces the standard descriptors, which no value owns.
        if unsafe { libc::dup2(nowhere, standard) } == -1 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Closes all descriptors from `first` to `last`. Values of the parent own them; the child uses none of these values, and
/// ends without dropping them.
fn close_all(first: i32, last: i32) {
    if first > last {
        return;
    }
    // SAFETY: as above. The call takes numbers only.
    let is_done = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } == 0;
    if !is_done {
        let open_max = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let open_max = open_max.and_then(|max| i32::try_from(max).ok()).unwrap_or(OPEN_MAX).min(OPEN_MAX);
        for descriptor in first..=last.min(open_max) {
            // SAFETY: as above.
            unsafe { libc::close(descriptor) };
        }
    }
}

/// Overwrites the copied arguments of the parent with the child's name, so that `ps` and `pkill -f` distinguish the two.
fn rename_in_listings(name: &CStr) -> Option<()> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // proc_pid_stat(5): fields 48 and 49; the third is the first behind the name.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(48 - 3);
    let start: u64 = fields.next()?.parse().ok()?;
    let end: u64 = fields.next()?.parse().ok()?;
    let mut arguments = vec![0; usize::try_from(end.checked_sub(start)?).ok()?];
    // The name is cut to fit: the last byte must stay 0.
    let len = name.to_bytes().len().min(arguments.len().saturating_sub(1));
    arguments[..len].copy_from_slice(&name.to_bytes()[..len]);
    let memory = File::options().write(true).open("/proc/self/mem").ok()?;
    memory.write_all_at(&arguments, start).ok()
}
