//! Namespaces for a command that runs in the tree of an image.

use std::{fs, io};

use rustix::{
    mount::{MountPropagationFlags, mount_change},
    process::{getegid, geteuid},
    thread::{UnshareFlags, unshare_unsafe},
};

/// Gives this process a mount namespace of its own, whose mounts other processes do not see. A user other than root gets a user namespace as
/// well, as its root. The process must have no other threads.
///
/// # Errors
/// The kernel refuses.
pub fn enter_own_mount_namespace() -> io::Result<()> {
    let (user, group) = (geteuid(), getegid());
    let users = if user.is_root() { UnshareFlags::empty() } else { UnshareFlags::NEWUSER };
    // SAFETY: neither flag affects the table of open files.
    unsafe { unshare_unsafe(users | UnshareFlags::NEWNS)? };
    if !user.is_root() {
        fs::write("/proc/self/setgroups", "deny")?;
        fs::write("/proc/self/uid_map", format!("0 {} 1", user.as_raw()))?;
        fs::write("/proc/self/gid_map", format!("0 {} 1", group.as_raw()))?;
    }
    Ok(mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?)
}

/// Gives this process another mount namespace, with copies of all mounts, and later children a process namespace: the first child is process
/// 1, and all others end with it. From then on, this process can start no threads. It must have none.
///
/// # Errors
/// The kernel refuses.
pub fn separate_children() -> io::Result<()> {
    // SAFETY: neither flag affects the table of open files.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS | UnshareFlags::NEWPID)? };
    Ok(())
}
