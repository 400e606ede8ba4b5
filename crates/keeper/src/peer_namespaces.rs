//! The namespaces of another process.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::fs::{Mode, OFlags, fstat, open};

use crate::namespaces_sys::{creator_of, parent_of, user_namespace_of};

/// The maximum depth of user namespaces.
const DEPTH_MAX: usize = 33;

/// The mount namespace and the user namespace of another process. They live as long as this value.
#[derive(Debug)]
pub struct PeerNamespaces {
    mounts: OwnedFd,
    users: OwnedFd,
    /// The identity of the user namespace.
    identity: u64,
    /// Whether the user namespace is that of this process.
    are_own_users: bool,
    /// Whether the user namespace of this process owns the mount namespace.
    owns_mounts: bool,
}

impl PeerNamespaces {
    /// Namespaces that were opened in `/proc/PID/ns`.
    ///
    /// # Errors
    /// They are none of this process's user namespace and those below it.
    pub(crate) fn new(mounts: OwnedFd, users: OwnedFd) -> io::Result<Self> {
        let own = identity(own_user_namespace()?.as_fd())?;
        let of_peer = identity(users.as_fd())?;
        let owns_mounts = identity(user_namespace_of(mounts.as_fd())?.as_fd())? == own;
        Ok(Self { mounts, users, identity: of_peer.1, are_own_users: of_peer == own, owns_mounts })
    }

    /// Whether the user namespace is that of this process, and owns the mount namespace.
    pub fn are_of_the_machine(&self) -> bool {
        self.are_own_users && self.owns_mounts
    }

    /// Whether this process may mount there: the mount namespace belongs to the user namespace of this process. Otherwise it
    /// belongs to one of users, who may have put anything at any path, and whose administrators may change each mount.
    pub fn admit_mounts(&self) -> bool {
        self.owns_mounts
    }

    /// A number that distinguishes the user namespace from others that exist.
    pub fn users_identity(&self) -> u64 {
        self.identity
    }

    /// The user to whom the process is accounted: `uid`, or who has created the outermost of its user namespaces, unless that is
    /// root. Otherwise a user could appear as thousands, as which containers run their processes.
    ///
    /// # Errors
    /// The kernel does not tell it.
    pub fn account(&self, uid: u32) -> io::Result<u32> {
        let own = identity(own_user_namespace()?.as_fd())?;
        let (mut namespace, mut creator) = (self.users.try_clone()?, uid);
        for _ in 0..DEPTH_MAX {
            if identity(namespace.as_fd())? == own {
                return Ok(if creator == 0 { uid } else { creator });
            }
            creator = creator_of(namespace.as_fd())?;
            namespace = parent_of(namespace.as_fd())?;
        }
        Err(io::ErrorKind::Unsupported.into())
    }

    /// The user namespace.
    pub fn users(&self) -> BorrowedFd<'_> {
        self.users.as_fd()
    }

    /// The mount namespace.
    pub(crate) fn mounts(&self) -> BorrowedFd<'_> {
        self.mounts.as_fd()
    }
}

fn own_user_namespace() -> io::Result<OwnedFd> {
    Ok(open("/proc/self/ns/user", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

/// The device and inode numbers of a namespace.
fn identity(namespace: BorrowedFd<'_>) -> io::Result<(u64, u64)> {
    let stat = fstat(namespace)?;
    Ok((stat.st_dev, stat.st_ino))
}
