//! Private mount namespaces and working directories for single threads.

use std::{io, os::fd::BorrowedFd, thread};

use rustix::{
    mount::{MountPropagationFlags, mount_change},
    process::fchdir,
    thread::{UnshareFlags, unshare_unsafe},
};

/// Runs `work` on a new thread with its own mount namespace, root and working directory. Other threads do not see its
/// mounts, which end with the thread unless something else holds them. The thread shares the caller's open files.
///
/// # Errors
/// This process may not create namespaces, no thread can be started, or `work` fails.
pub(crate) fn in_private_namespace<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    on_own_thread(|| {
        // SAFETY: NEWNS and FS do not affect the table of open files, which stays shared with all threads.
        unsafe { unshare_unsafe(UnshareFlags::NEWNS | UnshareFlags::FS)? };
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
        work()
    })
}

/// Runs `work` on a new thread whose working directory is `directory`.
///
/// # Errors
/// No thread can be started, the directory may not be entered, or `work` fails.
pub(crate) fn in_directory<T: Send>(
    directory: BorrowedFd<'_>,
    work: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    on_own_thread(|| {
        // SAFETY: FS does not affect the table of open files, which stays shared with all threads.
        unsafe { unshare_unsafe(UnshareFlags::FS)? };
        fchdir(directory)?;
        work()
    })
}

fn on_own_thread<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("floe-mounting".to_owned()).spawn_scoped(scope, work)?;
        thread.join().unwrap_or_else(|_panic| Err(io::Error::other("the thread that mounts panicked")))
    })
}
