//! Questions to the kernel about namespaces (ioctl_nsfs(2)).

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

/// `NS_GET_USERNS`.
const GET_USER_NAMESPACE: libc::Ioctl = 0xb701;

/// `NS_GET_PARENT`.
const GET_PARENT: libc::Ioctl = 0xb702;

/// `NS_GET_OWNER_UID`.
const GET_OWNER: libc::Ioctl = 0xb704;

/// The user namespace that owns a namespace.
///
/// # Errors
/// It is none of this process's user namespace and those below it.
pub(crate) fn user_namespace_of(namespace: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    descriptor(namespace, GET_USER_NAMESPACE)
}

/// The user namespace above a user namespace.
///
/// # Errors
/// As for [`user_namespace_of`].
pub(crate) fn parent_of(namespace: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    descriptor(namespace, GET_PARENT)
}

/// The user who has created a user namespace.
///
/// # Errors
/// It is no user namespace.
pub(crate) fn creator_of(namespace: BorrowedFd<'_>) -> io::Result<u32> {
    let mut user: libc::uid_t = 0;
    // SAFETY: the kernel writes one number of this type.
    let result = unsafe { libc::ioctl(namespace.as_raw_fd(), GET_OWNER, &raw mut user) };
    if result == 0 { Ok(user) } else { Err(io::Error::last_os_error()) }
}

fn descriptor(namespace: BorrowedFd<'_>, request: libc::Ioctl) -> io::Result<OwnedFd> {
    // SAFETY: these requests take no argument and access no memory.
    match unsafe { libc::ioctl(namespace.as_raw_fd(), request) } {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: the kernel has just made this descriptor for this call.
        number => Ok(unsafe { OwnedFd::from_raw_fd(number) }),
    }
}
