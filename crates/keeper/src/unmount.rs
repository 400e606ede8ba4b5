//! Unmounting.

use std::{
    ffi::CStr,
    io::{self, Read, Write},
    os::fd::AsRawFd,
    path::Path,
    time::Duration,
};

use floe_ipc::Encoded;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::retry_on_intr,
    process::{WaitOptions, waitpid},
};

use crate::{
    failure::{UnmountError, UnmountReason},
    fork_sys,
    place::{Detach, Place, flags},
    table::MountTable,
};

/// The name of the process that unmounts for a limited time.
const NAME: &CStr = c"floe-umount";

/// Unmounts the FUSE mount or the front on a directory, also if it is dead.
///
/// # Errors
/// There is no such mount, it is in use, or this user may not unmount it.
pub fn unmount(path: &Path, detach: Detach) -> Result<(), UnmountError> {
    let failed = |error| UnmountError::failed(path, error);
    let Ok(table) = MountTable::read() else {
        // Without /proc, only the kernel checks.
        let directory = std::fs::canonicalize(path).map_err(failed)?;
        let result = rustix::mount::unmount(&directory, flags(detach));
        return result.map_err(|error| UnmountReason::of(error).at(directory));
    };
    let entry = table.find(path).map_err(failed)?.ok_or_else(|| UnmountReason::NotMounted.at(path))?;
    if !entry.is_served() {
        return Err(UnmountReason::NotFuse { file_system: entry.file_system.clone() }.at(path));
    }
    Place::of(entry).unmount(detach).map_err(|error| match (&error.reason, entry.user_id) {
        (UnmountReason::NoPermission { .. }, Some(owner)) if is_other_user(owner) => {
            let explanation = match owner {
                0 => "it is root's mount, which only root can unmount".to_owned(),
                owner => format!("it was mounted by user {owner}: only that user and root can unmount it"),
            };
            UnmountReason::NoPermission { explanation }.at(error.path)
        }
        _ => error,
    })
}

/// As [`unmount`], but waits for at most `time_max`. Returns whether the kernel has finished: if not, the mount has disappeared
/// from the directory tree, but the kernel still waits for the process that served it. Should be called while this process has no
/// other thread; otherwise, and if no process can be started, there is no limit.
///
/// umount(2) waits for requests that the kernel has handed to the process that serves the mount over io_uring. If that process
/// is stopped, the system call does not return, and its caller cannot even be killed. So another process makes the call.
///
/// # Errors
/// As [`unmount`]; [`UnmountReason::Failed`] if the mount has not disappeared in time.
pub fn unmount_within(path: &Path, detach: Detach, time_max: Duration) -> Result<bool, UnmountError> {
    let failed = |error| UnmountError::failed(path, error);
    let directly = || unmount(path, detach).map(|()| true);
    let Ok((mut ours, theirs)) = io::pipe() else { return directly() };
    let table = MountTable::read().unwrap_or_default();
    let entry = table.find(path).map_err(failed)?;
    // The path may depend on the working directory or name this process (`/proc/self`); both are others in the other process.
    let independent = match entry {
        Some(entry) => entry.mountpoint.clone(),
        None => std::path::absolute(path).map_err(failed)?,
    };
    let device = entry.map(|entry| entry.device);
    let tell = || {
        let refusal = unmount(&independent, detach).err().map(|error| error.reason);
        let _ = (&theirs).write_all(&refusal.to_bytes());
    };
    let Ok(process) = fork_sys::fork(NAME, &[theirs.as_raw_fd()], tell) else { return directly() };
    drop(theirs);
    let mut ready = [PollFd::new(&ours, PollFlags::IN)];
    let time_max = Timespec::try_from(time_max).ok();
    if retry_on_intr(|| poll(&mut ready, time_max.as_ref())) == Ok(0) {
        let is_mounted = device.is_some() && device == device_on(path);
        return if is_mounted { Err(failed(io::ErrorKind::TimedOut.into())) } else { Ok(false) };
    }
    let mut bytes = Vec::new();
    let read = ours.read_to_end(&mut bytes);
    let _ = retry_on_intr(|| waitpid(Some(process), WaitOptions::empty()));
    match Option::<UnmountReason>::from_bytes(&bytes).filter(|_| read.is_ok()) {
        Some(None) => Ok(true),
        Some(Some(reason)) => Err(reason.at(path)),
        // The process was killed.
        None => directly(),
    }
}

/// Whether this process belongs neither to this user nor to root.
fn is_other_user(owner: u32) -> bool {
    let user = rustix::process::geteuid();
    !user.is_root() && user.as_raw() != owner
}

/// The device number of the mount on a directory. Does not access the mount.
fn device_on(directory: &Path) -> Option<(u32, u32)> {
    MountTable::read().ok()?.find(directory).ok()?.map(|entry| entry.device)
}
