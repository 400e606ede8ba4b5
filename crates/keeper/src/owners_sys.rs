//! Maps the owners of files of a mount to those of a user namespace (mount_setattr(2)).

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
};

/// `mount_setattr`, which has the same number on all processors.
const MOUNT_SETATTR: libc::c_long = 442;

/// `MOUNT_ATTR_IDMAP`.
const IDMAP: u64 = 0x0010_0000;

/// `struct mount_attr`.
#[repr(C)]
struct MountAttributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

/// Shows the owners that the files of a mount, which is attached to no directory, have in the file system as those with the same
/// numbers in a user namespace. The mapping is that of the namespace now.
///
/// # Errors
/// The file system does not support it, or the namespace has no mapping yet.
pub(crate) fn map_owners(mount: BorrowedFd<'_>, users: BorrowedFd<'_>) -> io::Result<()> {
    let user_namespace = u64::try_from(users.as_raw_fd()).map_err(io::Error::other)?;
    let attributes = MountAttributes { set: IDMAP, clear: 0, propagation: 0, user_namespace };
    // SAFETY: the path is a string with its end, and the kernel reads one structure of this size. The other arguments are numbers.
    let result = unsafe {
        libc::syscall(
            MOUNT_SETATTR,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attributes,
            size_of::<MountAttributes>(),
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
