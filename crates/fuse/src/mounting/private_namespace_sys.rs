//! A mount namespace of a thread's own.

use std::{io, thread};

use rustix::{
    mount::{MountPropagationFlags, mount_change},
    thread::{UnshareFlags, unshare_unsafe},
};

/// Runs `work` on a thread that has a mount namespace, a root and a working directory of its own. What it mounts there is
/// seen by nobody else, and is gone with the thread unless something that stays holds it. Open files are shared with the
/// caller.
///
/// # Errors
/// This process may not do that, or no thread can be had; else what `work` says.
pub(crate) fn in_private_namespace<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let work = || {
            // SAFETY: the table of open files stays shared with all threads, as NEWNS and FS leave it alone.
            unsafe { unshare_unsafe(UnshareFlags::NEWNS | UnshareFlags::FS)? };
            mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
            work()
        };
        let thread = thread::Builder::new().name("floe-mounting".to_owned()).spawn_scoped(scope, work)?;
        thread.join().unwrap_or_else(|_panic| Err(io::Error::other("the thread that mounts has failed")))
    })
}
