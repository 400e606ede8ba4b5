//! Mounts that root makes for other users.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use floe_fuse_wire as wire;
use rustix::{
    mount::{
        FsMountFlags, FsOpenFlags, MoveMountFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount,
        fsopen, move_mount,
    },
    process::fchdir,
};

use crate::{
    directory::{Directory, NameInParent},
    failure::{MountFailure, UnmountError, UnmountReason},
    front::{DetachedFront, attributes, explained},
    options::{Access, KernelFlags, KernelOptions},
    peer_namespaces::PeerNamespaces,
    peer_sys::Peer,
    place::{Detach, Place, flags},
    private_namespace_sys::in_namespace_as,
    user_place,
};

/// A mount for another user, which is attached to no directory. It ends when this is dropped, unless it has been attached.
#[derive(Debug)]
pub struct DetachedMount {
    mount: OwnedFd,
}

impl DetachedMount {
    /// Creates a FUSE mount for the user of `peer`, with these options but always `nosuid` and `nodev`. Returns it with the descriptor of
    /// its connection. The kernel admits that user alone, unless the options admit others.
    ///
    /// # Errors
    /// The device cannot be opened, or the kernel refuses.
    pub fn for_user(peer: &Peer, options: &KernelOptions) -> Result<(Self, OwnedFd), MountFailure> {
        let device = wire::open().map_err(|error| MountFailure::Device { error })?;
        let mount = create(peer, options, &device).map_err(|error| MountFailure::Refused { error })?;
        Ok((Self { mount }, device))
    }

    /// The place of the mount once it is attached to a directory.
    pub fn place_on(&self, directory: &Directory) -> Place {
        Place::of_detached(self.mount.as_fd(), directory.path())
    }

    /// Attaches the mount to a directory that the peer has opened, in the mount namespace of the peer.
    ///
    /// # Errors
    /// By the rules of fusermount3, the peer may not mount there, or the kernel refuses.
    pub fn attach(self, directory: &Directory, peer: &Peer, namespaces: &PeerNamespaces) -> io::Result<()> {
        in_namespace_as(namespaces.mounts(), peer, || {
            user_place::check(directory, peer.uid)?;
            attach(self.mount.as_fd(), directory)
        })
    }
}

impl From<DetachedFront> for DetachedMount {
    fn from(front: DetachedFront) -> Self {
        Self { mount: front.into_mount() }
    }
}

impl From<DetachedMount> for OwnedFd {
    fn from(mount: DetachedMount) -> Self {
        mount.mount
    }
}

/// Attaches a mount that is attached to no directory, in the mount namespace of this process.
///
/// # Errors
/// This process may not mount there, or the kernel refuses.
pub fn attach(mount: BorrowedFd<'_>, directory: &Directory) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(move_mount(mount, "", directory, "", flags)?)
}

impl Directory {
    /// Checks that a peer may mount on this directory by the rules of fusermount3, in its mount namespace.
    ///
    /// # Errors
    /// It may not; the text is the reason.
    pub fn check_for(&self, peer: &Peer, namespaces: &PeerNamespaces) -> io::Result<()> {
        in_namespace_as(namespaces.mounts(), peer, || user_place::check(self, peer.uid))
    }
}

impl Place {
    /// Unmounts this mount in the mount namespace of a peer, with the rights of the peer over the directories above.
    ///
    /// # Errors
    /// It is not there, another mount covers it, or it is in use.
    pub fn unmount_for(&self, peer: &Peer, namespaces: &PeerNamespaces, detach: Detach) -> Result<(), UnmountError> {
        let unmounted = in_namespace_as(namespaces.mounts(), peer, || {
            let not_there = || io::Error::from_raw_os_error(libc::EINVAL);
            let name = NameInParent::of(self.directory()).map_err(|_error| not_there())?;
            if !self.is_on(&name) {
                return Err(not_there());
            }
            // In the directory, the name needs no path.
            fchdir(name.parent())?;
            Ok(rustix::mount::unmount(name.name(), flags(detach))?)
        });
        let reason = |error: io::Error| match error.raw_os_error() {
            Some(libc::EINVAL) => UnmountReason::NotMounted,
            Some(libc::EBUSY) => UnmountReason::Busy,
            _ => UnmountReason::Failed { error },
        };
        unmounted.map_err(|error| reason(error).at(self.directory()))
    }
}

fn create(peer: &Peer, options: &KernelOptions, device: &OwnedFd) -> io::Result<OwnedFd> {
    let context = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
    let source = options.source.replace('\0', "");
    for (key, value) in [
        ("source", source),
        ("subtype", options.subtype.clone()),
        ("fd", device.as_raw_fd().to_string()),
        ("rootmode", format!("{:o}", libc::S_IFDIR)),
        ("user_id", peer.uid.to_string()),
        ("group_id", peer.gid.to_string()),
    ] {
        if !value.is_empty() {
            fsconfig_set_string(&context, key, value)?;
        }
    }
    if options.checks_permissions {
        fsconfig_set_flag(&context, "default_permissions")?;
    }
    if options.access() != Access::Owner {
        fsconfig_set_flag(&context, "allow_other")?;
    }
    fsconfig_set_flag(&context, "ro")?;
    fsconfig_create(&context).map_err(|error| explained(context.as_fd(), error))?;
    let strict = KernelFlags { nosuid: true, nodev: true, ..options.flags };
    Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes(strict))?)
}
