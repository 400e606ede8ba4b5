//! Makes everything but one directory read-only.
//!
//! Landlock does not restrict changes of modes, owners, times and attributes, so these need another limit. A read-only mount
//! is one.

use std::{
    ffi::CStr,
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
};

use rustix::{
    fs::CWD,
    mount::{MountAttrFlags, MountPropagationFlags, OpenTreeFlags, mount_change, open_tree},
    thread::{CapabilitySet, UnshareFlags, capabilities, unshare_unsafe},
};

/// `mount_setattr` has the same number on all architectures; some C libraries do not define it.
const SYS_MOUNT_SETATTR: libc::c_long = 442;

/// The capabilities that permit changes of files of other users, or use of devices.
const OVER_OTHERS: CapabilitySet =
    CapabilitySet::CHOWN.union(CapabilitySet::DAC_OVERRIDE).union(CapabilitySet::FOWNER).union(CapabilitySet::MKNOD);

/// `struct mount_attr` of mount_setattr(2).
#[repr(C)]
#[derive(Default)]
struct Attributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

/// What became of the files outside a directory.
pub(crate) enum Outside {
    /// They are read-only. The directory continues in a mount of its own, which no path leads to.
    ReadOnly(OwnedFd),
    /// The process has no capabilities over files of others.
    Harmless,
    /// The process has such capabilities, but may not create a mount namespace, or the kernel cannot (before Linux 5.12), or
    /// the directory is in a mount namespace of other processes.
    Changeable,
}

/// Gives this process its own mount namespace, in which everything is read-only but the directory `tree`, in which devices and
/// programs cannot be used. Mounts that are made later do not appear in the namespace; those that others unmount stay in it.
///
/// # Errors
/// A system call fails although the first ones succeeded.
pub(crate) fn restrict_changes(tree: &OwnedFd) -> io::Result<Outside> {
    let held = capabilities(None)?.effective;
    if !held.contains(CapabilitySet::SYS_ADMIN) {
        return Ok(if held.intersects(OVER_OTHERS) { Outside::Changeable } else { Outside::Harmless });
    }
    // Afterwards, the descriptor is in the namespace that the process leaves, and cannot be cloned.
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH
        | OpenTreeFlags::AT_RECURSIVE;
    let Ok(tree) = open_tree(tree, "", flags) else { return Ok(Outside::Changeable) };
    let inert =
        MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    // Otherwise a mount that appears later could be changed.
    let private = MountPropagationFlags::PRIVATE;
    let attributes = Attributes { set: inert.bits().into(), propagation: private.bits(), ..Attributes::default() };
    if set(&tree, c"", libc::AT_EMPTY_PATH | libc::AT_RECURSIVE, &attributes).is_err() {
        return Ok(Outside::Changeable);
    }
    // SAFETY: the table of open files stays shared.
    if unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.is_err() {
        return Ok(Outside::Changeable);
    }
    if mount_change("/", private | MountPropagationFlags::REC).is_err() {
        return Ok(Outside::Changeable);
    }
    set_everywhere(MountAttrFlags::MOUNT_ATTR_RDONLY)?;
    Ok(Outside::ReadOnly(tree))
}

/// Forbids the use of devices. Open ones stay usable.
///
/// # Errors
/// The kernel refuses.
pub(crate) fn forbid_devices() -> io::Result<()> {
    set_everywhere(MountAttrFlags::MOUNT_ATTR_NODEV)
}

/// Sets attributes of all mounts of the namespace.
fn set_everywhere(flags: MountAttrFlags) -> io::Result<()> {
    set(&CWD, c"/", libc::AT_RECURSIVE, &Attributes { set: flags.bits().into(), ..Attributes::default() })
}

fn set(place: &impl AsFd, path: &CStr, flags: libc::c_int, attributes: &Attributes) -> io::Result<()> {
    let place = place.as_fd().as_raw_fd();
    // SAFETY: the path and the structure live through the call, which is told the structure's size.
    let result = unsafe {
        libc::syscall(
            SYS_MOUNT_SETATTR,
            place,
            path.as_ptr(),
            flags,
            std::ptr::from_ref(attributes),
            size_of::<Attributes>(),
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
