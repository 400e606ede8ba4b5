//! Makes everything but one directory read-only.
//!
//! Landlock does not restrict changes of modes, owners, times and attributes, so these need another limit. A read-only mount is one.

use std::{
    env, fs, io,
    os::{
        fd::{AsFd, AsRawFd},
        unix::fs::FileTypeExt,
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, CWD, StatxFlags, statx},
    mount::{
        MountAttrFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, mount_change, move_mount, open_tree,
    },
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

impl Attributes {
    fn setting(flags: MountAttrFlags) -> Self {
        Self { set: flags.bits().into(), ..Self::default() }
    }
}

/// Gives this process its own mount namespace, in which it can change nothing outside `directory`, and in which devices and
/// programs beneath it cannot be used. Those of `used` that are devices stay usable. Mounts that are made later do not appear in the
/// namespace; those that others unmount stay in it. Returns `false` if the process has capabilities over files of others, but may
/// not create such a namespace, or the kernel cannot (before Linux 5.12).
///
/// # Errors
/// A system call fails although the first ones succeeded.
pub(crate) fn restrict_changes<'a>(directory: &Path, used: impl Iterator<Item = &'a Path>) -> io::Result<bool> {
    let held = capabilities(None)?.effective;
    if !held.contains(CapabilitySet::SYS_ADMIN) {
        return Ok(!held.intersects(OVER_OTHERS));
    }
    // This also mounts what automount mounts on access, which does not appear in the namespace later.
    let devices: Vec<&Path> = used.filter(|path| is_device(path)).collect();
    let Ok(directory) = directory.canonicalize() else { return Ok(false) };
    // SAFETY: the table of open files stays shared.
    if unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.is_err() {
        return Ok(false);
    }
    // Otherwise a mount that appears later could be changed.
    let (private, all) = (MountPropagationFlags::PRIVATE, MountPropagationFlags::REC);
    if mount_change("/", private | all).is_err() {
        return Ok(false);
    }
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    let Ok(tree) = open_tree(CWD, &directory, flags) else { return Ok(false) };
    let inert =
        MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    if set(&tree, c"", libc::AT_EMPTY_PATH | libc::AT_RECURSIVE, &Attributes::setting(inert)).is_err() {
        return Ok(false);
    }
    let outside = MountAttrFlags::MOUNT_ATTR_RDONLY | MountAttrFlags::MOUNT_ATTR_NODEV;
    if directory == Path::new("/") {
        set(&CWD, c"/", libc::AT_RECURSIVE, &Attributes::setting(inert))?;
    } else {
        set(&CWD, c"/", libc::AT_RECURSIVE, &Attributes::setting(outside))?;
        move_mount(&tree, "", CWD, &directory, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    }
    for device in devices {
        // The image may be on a device. A device beneath the directory cannot be reached through these mounts.
        let clear = Attributes { clear: MountAttrFlags::MOUNT_ATTR_NODEV.bits().into(), ..Attributes::default() };
        let mount = root_of_mount(device)?;
        let mount = std::ffi::CString::new(mount.into_os_string().into_encoded_bytes())?;
        set(&CWD, &mount, 0, &clear)?;
    }
    // The working directory may be on the mount that is now beneath that of the directory.
    if let Ok(working) = env::current_dir() {
        env::set_current_dir(working)?;
    }
    Ok(true)
}

fn is_device(path: &Path) -> bool {
    let kind = fs::metadata(path).map(|metadata| metadata.file_type());
    kind.is_ok_and(|kind| kind.is_block_device() || kind.is_char_device())
}

/// The root of the mount that contains a file.
fn root_of_mount(path: &Path) -> io::Result<PathBuf> {
    let mount_of = |path: &Path| -> io::Result<u64> {
        Ok(statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::MNT_ID)?.stx_mnt_id)
    };
    let mut path = path.canonicalize()?;
    let mount = mount_of(&path)?;
    while let Some(parent) = path.parent().filter(|parent| mount_of(parent).is_ok_and(|found| found == mount)) {
        path = parent.to_owned();
    }
    Ok(path)
}

fn set(place: &impl AsFd, path: &std::ffi::CStr, flags: libc::c_int, attributes: &Attributes) -> io::Result<()> {
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
