//! Mount namespaces, working directories and rights over files for single threads.

use std::{io, os::fd::BorrowedFd, thread};

use rustix::{
    fs::Gid,
    mount::{MountPropagationFlags, mount_change},
    process::fchdir,
    thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, set_thread_groups, unshare_unsafe},
};

use crate::peer_sys::Peer;

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

/// Runs `work` on a new thread in another mount namespace, with a root and a working directory of its own. The thread has the rights
/// over files of the user and the groups of `peer`, and keeps the right to mount.
///
/// # Errors
/// This process may not enter the namespace, no thread can be started, or `work` fails.
pub(crate) fn in_namespace_as<T: Send>(
    namespace: BorrowedFd<'_>,
    peer: &Peer,
    work: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    on_own_thread(|| {
        // SAFETY: FS does not affect the table of open files, which stays shared with all threads.
        unsafe { unshare_unsafe(UnshareFlags::FS)? };
        move_into_link_name_space(namespace, Some(LinkNameSpaceType::Mount))?;
        let groups: Vec<Gid> = peer.groups().iter().map(|group| Gid::from_raw(*group)).collect();
        // All three belong to the thread.
        set_thread_groups(&groups)?;
        let set = |set: unsafe extern "C" fn(u32) -> libc::c_int, id: u32| {
            // SAFETY: the calls take numbers, and change only this thread.
            let current = unsafe {
                set(id);
                // This is no id, so nothing changes; the id is returned.
                set(u32::MAX)
            };
            if current.cast_unsigned() == id { Ok(()) } else { Err(io::Error::from(io::ErrorKind::PermissionDenied)) }
        };
        set(libc::setfsgid, peer.gid)?;
        set(libc::setfsuid, peer.uid)?;
        work()
    })
}

fn on_own_thread<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("floe-mounting".to_owned()).spawn_scoped(scope, work)?;
        thread.join().unwrap_or_else(|_panic| Err(io::Error::other("the thread that mounts panicked")))
    })
}
