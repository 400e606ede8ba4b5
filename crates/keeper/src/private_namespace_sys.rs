//! Mount namespaces, root and working directories, and rights over files for single threads.

use std::{
    io,
    os::fd::{BorrowedFd, OwnedFd},
    thread,
};

use rustix::{
    fs::{CWD, Gid, Mode, mkdirat},
    io::Errno,
    mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, fsconfig_create, fsmount,
        fsopen, mount_change, move_mount,
    },
    process::{chroot, fchdir},
    thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, set_thread_groups, unshare_unsafe},
};

use crate::peer_sys::Peer;

/// Runs `work` on a new thread whose root and working directory are a file system of its own, which is empty but for the directory
/// `name` with `mount` on it. Other threads do not see what is mounted there, and it is unmounted when the thread ends. The thread shares
/// the caller's open files.
///
/// # Errors
/// This process may not mount, no thread can be started, or `work` fails.
pub(crate) fn in_private_root<T: Send>(
    mount: BorrowedFd<'_>,
    name: &str,
    work: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    on_own_thread(|| {
        let _root = match enter_private_root(mount, name, false) {
            // Before Linux 6.15, nothing can be mounted on a mount outside of a namespace.
            Err(Errno::INVAL) => enter_private_root(mount, name, true)?,
            entered => entered?,
        };
        work()
    })
}

/// Makes a new file system the root and the working directory of this thread, with `mount` on its directory `name`: outside of any mount
/// namespace, or in a new one. That copies all mounts of the machine, and its end takes as long. Returns the root; once it is closed,
/// nothing more can be mounted there.
///
/// # Errors
/// The kernel refuses: with `EINVAL` if it is too old for mounts on a mount outside of a namespace.
fn enter_private_root(mount: BorrowedFd<'_>, name: &str, in_namespace: bool) -> rustix::io::Result<OwnedFd> {
    let root = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&root)?;
    let root = fsmount(&root, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    mkdirat(&root, name, Mode::RWXU)?;
    let flags = if in_namespace { UnshareFlags::FS | UnshareFlags::NEWNS } else { UnshareFlags::FS };
    // SAFETY: FS and NEWNS do not affect the table of open files, which stays shared with all threads.
    unsafe { unshare_unsafe(flags)? };
    if in_namespace {
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
        move_mount(&root, "", CWD, "/", MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    }
    move_mount(mount, "", &root, name, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    fchdir(&root)?;
    chroot(".")?;
    Ok(root)
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

#[cfg(test)]
mod tests {
    use std::{fs, os::fd::AsFd};

    use floe_testkit::skip::{Need, ready};

    use super::*;

    #[test]
    fn a_private_root_has_its_mount_alone() {
        if !ready(&[Need::Root]) {
            return;
        }
        for in_namespace in [false, true] {
            let [mount, another] = [(); 2].map(|()| {
                let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).expect("root may");
                fsconfig_create(&context).expect("root may");
                fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty()).expect("root may")
            });
            mkdirat(&mount, "inside", Mode::RWXU).expect("it is writable");
            let names = |path: &str| -> io::Result<Vec<_>> {
                Ok(fs::read_dir(path)?.flatten().map(|entry| entry.file_name()).collect())
            };
            let found = on_own_thread(|| {
                let _root = enter_private_root(mount.as_fd(), "name", in_namespace)?;
                let found = (names("/")?, names("/name")?, names(".")?);
                let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
                move_mount(another.as_fd(), "", CWD, "/name/inside", flags).map_err(io::Error::other)?;
                Ok(found)
            });
            match found {
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) && !in_namespace => {
                    println!("skipped: mounts outside of a namespace, because the kernel is older than Linux 6.15");
                }
                found => {
                    let (root, below, current) = found.expect("root may");
                    assert_eq!((&root, below), (&vec!["name".into()], vec!["inside".into()]), "{in_namespace}");
                    assert_eq!(root, current);
                }
            }
            // Other tests mount meanwhile.
            let table = fs::read_to_string("/proc/self/mountinfo").expect("it is readable");
            assert!(fs::metadata("/name").is_err() && !table.contains(" /name"), "{table}");
        }
        let mount = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).expect("root may");
        assert!(in_private_root(mount.as_fd(), "name", || Ok(())).is_err(), "it is no mount");
    }
}
