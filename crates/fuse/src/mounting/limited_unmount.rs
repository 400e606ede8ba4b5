//! Unmounting with a limit of time.
//!
//! umount(2) waits for requests that the kernel has handed to the process that serves the mount over io_uring. If that process
//! is stopped, the system call does not return, and its caller cannot even be killed. So another process makes the call.

use std::{
    ffi::CStr,
    io::{self, Read, Write},
    os::fd::AsRawFd,
    path::Path,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::retry_on_intr,
    process::{WaitOptions, waitpid},
};

use crate::{
    Detach, MountTable, UnmountError,
    mounting::{fork_sys, keeper::messages::Answer, unmount::unmount},
};

/// The name of the process that unmounts.
const NAME: &CStr = c"floe-umount";

/// As [`unmount`], but waits for at most `time_max`. Returns whether the kernel has finished: if not, the mount has disappeared
/// from the directory tree, but the kernel still waits for the process that served it. Should be called while this process has no
/// other thread; otherwise, and if no process can be started, there is no limit.
///
/// # Errors
/// As [`unmount`]; [`UnmountError::Failed`] if the mount has not disappeared in time.
pub fn unmount_within(path: &Path, detach: Detach, time_max: Duration) -> Result<bool, UnmountError> {
    let failed = |error| UnmountError::Failed { path: path.to_owned(), error };
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
        let answer = Answer::of_unmount(unmount(&independent, detach));
        let _ = (&theirs).write_all(&answer.to_bytes());
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
    match Answer::from_bytes(&bytes).filter(|_| read.is_ok()) {
        Some(answer) => answer.into_unmount(path).map(|()| true),
        // The process was killed.
        None => directly(),
    }
}

/// The device number of the mount on a directory. Does not access the mount.
fn device_on(directory: &Path) -> Option<(u32, u32)> {
    MountTable::read().ok()?.find(directory).ok()?.map(|entry| entry.device)
}
