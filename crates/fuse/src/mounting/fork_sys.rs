//! A child of this process that runs a function of its own.

use std::{
    ffi::CStr,
    fs::File,
    io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::FileExt,
    },
    panic::{AssertUnwindSafe, catch_unwind},
};

use rustix::process::Pid;

/// What a child may not be ended by, as it has to outlive its parent: what a terminal and `kill` send.
const IGNORED: [i32; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

/// How many descriptors are closed at most where the kernel does not close them all in one call.
const OPEN_MAX: i32 = 1 << 16;

/// The name of the child.
const NAME: &CStr = c"floe-keeper";

/// Forks, and runs `work` in the child, which keeps nothing open but `kept` and ends with it. Gives the child's id.
///
/// # Errors
/// Other threads run, whose locks the child would inherit; or no process can be had.
pub(crate) fn fork(kept: &[OwnedFd], work: impl FnOnce()) -> io::Result<Pid> {
    if std::fs::read_dir("/proc/self/task").is_ok_and(|tasks| tasks.count() > 1) {
        return Err(io::Error::other("other threads run already"));
    }
    // Without it the child keeps what its parent writes to.
    let nowhere = File::options().read(true).write(true).open("/dev/null").ok();
    // SAFETY: no other thread runs, so the child finds all locks free and all memory whole.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            // A panic must not unwind into what the parent would do next.
            let _ = catch_unwind(AssertUnwindSafe(|| {
                keep_only(kept, nowhere.as_ref());
                work();
            }));
            // SAFETY: ends the child. What the parent registered to be run at its end, and what it had not written yet, are
            // the parent's.
            unsafe { libc::_exit(0) }
        }
        child => Pid::from_raw(child).ok_or_else(|| io::ErrorKind::InvalidData.into()),
    }
}

/// Lets go of the terminal, the working directory and all descriptors but `kept`.
fn keep_only(kept: &[OwnedFd], nowhere: Option<&File>) {
    let _ = std::env::set_current_dir("/");
    let _ = rustix::thread::set_name(NAME);
    rename_in_listings();
    for signal in IGNORED {
        // SAFETY: no handler of ours is involved.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    for (standard, nowhere) in nowhere.into_iter().flat_map(|nowhere| [(0, nowhere), (1, nowhere), (2, nowhere)]) {
        // SAFETY: replaces the standard descriptors, which nobody owns.
        unsafe { libc::dup2(nowhere.as_raw_fd(), standard) };
    }
    let mut numbers: Vec<i32> = kept.iter().map(AsRawFd::as_raw_fd).collect();
    numbers.sort_unstable();
    let mut first = 3;
    for number in numbers {
        close_all(first, number - 1);
        first = number + 1;
    }
    close_all(first, i32::MAX);
}

/// Closes all descriptors from `first` to `last`: values of the parent own them, and in the child, which ends without
/// dropping them, none is used any more.
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

/// Puts the child's name in the place of the parent's arguments, so that `ps` and `pkill -f` tell the two apart.
fn rename_in_listings() -> Option<()> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // proc_pid_stat(5): fields 48 and 49; the third is the first behind the name.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(48 - 3);
    let start: u64 = fields.next()?.parse().ok()?;
    let end: u64 = fields.next()?.parse().ok()?;
    let mut arguments = vec![0; usize::try_from(end.checked_sub(start)?).ok()?];
    // What does not fit is left out, as the last byte ends the list.
    let len = NAME.to_bytes().len().min(arguments.len().saturating_sub(1));
    arguments[..len].copy_from_slice(&NAME.to_bytes()[..len]);
    let memory = File::options().write(true).open("/proc/self/mem").ok()?;
    memory.write_all_at(&arguments, start).ok()
}
