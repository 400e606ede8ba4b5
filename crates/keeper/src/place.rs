//! The place of a mount in the directory tree.

use std::{
    os::fd::BorrowedFd,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, StatxFlags, statx},
    io::Errno,
    mount::UnmountFlags,
};

use crate::{
    directory::{Directory, NameInParent},
    failure::{UnmountError, UnmountReason},
    fusermount,
    mount_id_sys::{DONT_SYNC, MOUNT_ID, UniqueMountId, mount_id},
    table::{MountEntry, MountTable},
};

/// How a mount that is in use is treated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Detach {
    /// It is not unmounted: unmounting fails.
    Never,
    /// It disappears from the tree now, and ends when its last user is done.
    Lazily,
}

/// How often an unmount looks for a mount whose path changes at that moment.
const LOOKS_MAX: usize = 16;

/// The place of one mount. The mount is identified by its numbers and not by its path: the owner of a directory above can
/// rename directories and put others in their place. No descriptor of the mount is open, because it would be busy, nor of the
/// directory below it, because its file system would be.
#[derive(Clone, Debug)]
pub struct Place {
    /// The path when the mount was made.
    directory: PathBuf,
    /// The device and inode numbers of the directory above.
    parent: Option<(u32, u32, u64)>,
    /// The mount ID in mountinfo; `None` without /proc. The kernel reuses it after the mount's end.
    mount_id: Option<u32>,
    /// The device number of the mount's files.
    device: Option<(u32, u32)>,
    /// The unique ID of the mount, if the kernel has those.
    unique_mount_id: Option<UniqueMountId>,
}

/// The numbers of a place, for another process: [`Place::to_numbers`]. An unknown number is 0, which the kernel uses for none of
/// them.
pub type PlaceNumbers = [u64; 7];

impl Place {
    /// The place of the mount just made on an open directory.
    pub(crate) fn on(directory: &Directory) -> Self {
        let mut place = Self::unknown(directory.path_now());
        // The directory may get another name at any time.
        for _ in 0..LOOKS_MAX {
            let Ok(name) = directory.name_in_parent() else { break };
            place = Self::at(&name, directory.path_now());
            if place.mount_id.is_some() || MountTable::read().is_err() {
                break;
            }
        }
        place
    }

    /// The place of a mount that is attached to no directory yet, on the directory to which it will be. The kernel tells the unique ID
    /// of another user's mount to nobody else.
    pub(crate) fn of_detached(mount: BorrowedFd<'_>, directory: &Path) -> Self {
        let place = Self::unknown(directory.to_owned());
        match numbers_of(mount, Path::new("")) {
            Some((device, mount_id)) => Self { mount_id: Some(mount_id), device: Some(device), ..place },
            None => place,
        }
    }

    /// Whether a name in a directory leads to this mount, by numbers that the kernel tells every user.
    pub(crate) fn is_on(&self, name: &NameInParent) -> bool {
        let numbers = numbers_of(name.parent(), name.name());
        numbers.is_some() && numbers == self.device.zip(self.mount_id)
    }

    /// The place of a mount that another process has made where this one may not look.
    pub fn elsewhere(directory: PathBuf, device: (u32, u32)) -> Self {
        Self { device: Some(device), ..Self::unknown(directory) }
    }

    /// The place of the mount with this ID in the mount table, or, without a table, of the one on this directory.
    pub fn with_id(mount_id: Option<u32>, directory: &Path) -> Self {
        let table = MountTable::read().unwrap_or_default();
        if let Some(entry) = mount_id.and_then(|mount_id| table.with_id(mount_id)) {
            return Self::of(entry);
        }
        match NameInParent::of(directory) {
            Ok(name) => Self::at(&name, directory.to_owned()),
            Err(_) => Self { mount_id, ..Self::unknown(directory.to_owned()) },
        }
    }

    /// The place of a mount of the table.
    pub(crate) fn of(entry: &MountEntry) -> Self {
        let name = NameInParent::of(&entry.mountpoint).ok();
        let found = name.map(|name| Self::at(&name, entry.mountpoint.clone()));
        // Another mount may cover it, or the path may lead elsewhere by now.
        let found = found.filter(|found| found.mount_id == Some(entry.id));
        let (parent, unique_mount_id) = found.map_or((None, None), |found| (found.parent, found.unique_mount_id));
        Self {
            directory: entry.mountpoint.clone(),
            parent,
            mount_id: Some(entry.id),
            device: Some(entry.device),
            unique_mount_id,
        }
    }

    /// The numbers by which another process finds the mount.
    pub fn to_numbers(&self) -> PlaceNumbers {
        let (parent_major, parent_minor, parent_inode) = self.parent.unwrap_or_default();
        let (major, minor) = self.device.unwrap_or_default();
        let unique_mount_id = self.unique_mount_id.map_or(0, UniqueMountId::to_number);
        let [mount_id, major, minor] = [self.mount_id.unwrap_or(0), major, minor].map(u64::from);
        [parent_major.into(), parent_minor.into(), parent_inode, mount_id, major, minor, unique_mount_id]
    }

    /// The place of [`Place::to_numbers`]. `directory` is the path when the mount was made.
    pub fn from_numbers(numbers: PlaceNumbers, directory: PathBuf) -> Self {
        let [parent_major, parent_minor, parent_inode, mount_id, major, minor, unique_mount_id] = numbers;
        let [parent_major, parent_minor, mount_id, major, minor] =
            [parent_major, parent_minor, mount_id, major, minor].map(|number| u32::try_from(number).unwrap_or(0));
        Self {
            directory,
            parent: Some((parent_major, parent_minor, parent_inode)).filter(|parent| parent.2 != 0),
            mount_id: Some(mount_id).filter(|mount_id| *mount_id != 0),
            device: Some((major, minor)).filter(|device| *device != (0, 0)),
            unique_mount_id: Some(unique_mount_id)
                .filter(|unique_mount_id| *unique_mount_id != 0)
                .map(UniqueMountId::from_number),
        }
    }

    /// The place of a mount that is still to be made on a directory: nothing is mounted there, and nothing can be unmounted.
    pub(crate) fn nowhere(directory: PathBuf) -> Self {
        // The kernel gives neither number to a mount.
        let (mount_id, unique_mount_id) = (Some(u32::MAX), Some(UniqueMountId::from_number(u64::MAX)));
        Self { mount_id, unique_mount_id, ..Self::unknown(directory) }
    }

    fn unknown(directory: PathBuf) -> Self {
        Self { directory, parent: None, mount_id: None, device: None, unique_mount_id: None }
    }

    /// The place of the topmost mount on a name, which a program must serve.
    fn at(name: &NameInParent, directory: PathBuf) -> Self {
        let unique_mount_id = UniqueMountId::of(name.parent(), name.name());
        // Reading the table takes milliseconds if there are a thousand mounts.
        let known = unique_mount_id.and_then(UniqueMountId::facts);
        let served = known.filter(|facts| facts.is_served).map(|facts| (facts.id, facts.device));
        let served = if known.is_some() { served } else { served_in_table(name) };
        let (mount_id, device) = served.unzip();
        Self {
            directory,
            parent: inode_of(name),
            mount_id,
            device: device.or_else(|| device_of(name)),
            unique_mount_id,
        }
    }

    /// The path of the directory when the mount was made.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The mount ID in mountinfo; `None` without /proc.
    pub(crate) fn mount_id(&self) -> Option<u32> {
        self.mount_id
    }

    /// The device number of the mount's files, if it is known.
    pub fn device(&self) -> Option<(u32, u32)> {
        self.device
    }

    /// Whether the mount still exists, covered or not; `true` if this cannot be determined.
    pub fn is_mounted(&self) -> bool {
        // A confined process may not ask for the mount by its ID.
        self.unique_mount_id.and_then(UniqueMountId::is_mounted).unwrap_or_else(|| self.is_listed())
    }

    /// Checks that the mount can be unmounted here.
    ///
    /// # Errors
    /// It is no longer on its directory, or another mount covers it.
    pub fn check_unmountable(&self) -> Result<(), UnmountError> {
        // A mount that was moved exists, but not here.
        if !self.is_mounted() || !self.is_listed() {
            return Err(UnmountReason::NotMounted.at(&self.directory));
        }
        if !self.is_on_top() {
            return Err(UnmountReason::Covered.at(&self.directory));
        }
        Ok(())
    }

    /// Whether the mount is still on its directory, covered or not; `true` if this cannot be determined.
    pub fn is_listed(&self) -> bool {
        MountTable::read().map_or(true, |table| self.entry(&table).is_some())
    }

    /// The path that leads to the directory of the mount now: a directory above may have another name.
    pub fn path_now(&self) -> PathBuf {
        let table = MountTable::read().unwrap_or_default();
        self.entry(&table).map_or_else(|| self.directory.clone(), |entry| entry.mountpoint.clone())
    }

    /// Whether the path of the mount leads to it, and not to one that covers it; `true` if this cannot be determined.
    pub fn is_on_top(&self) -> bool {
        let Ok(table) = MountTable::read() else {
            return self.unique_mount_id.and_then(|id| id.is_on(&self.directory)).unwrap_or(true);
        };
        let Some(entry) = self.entry(&table) else { return false };
        let by_id = self.unique_mount_id.and_then(|id| id.is_on(&entry.mountpoint));
        by_id.unwrap_or_else(|| table.on(&entry.mountpoint).is_some_and(|top| top.id == entry.id))
    }

    /// The mount in the table, if it is still on its directory.
    fn entry<'table>(&self, table: &'table MountTable) -> Option<&'table MountEntry> {
        let is_device = |entry: &&MountEntry| self.device.is_none_or(|device| entry.device == device);
        match self.mount_id {
            Some(mount_id) => table.with_id(mount_id).filter(is_device).filter(|entry| self.is_at(&entry.mountpoint)),
            None => table.entries().iter().rev().find(|entry| entry.mountpoint == self.directory && is_device(entry)),
        }
    }

    /// Whether this is the path of the mount's directory. Directories above it may have other names by now; but a mount that
    /// was moved has another directory.
    fn is_at(&self, mountpoint: &Path) -> bool {
        let is_renamed = || {
            let name =
                NameInParent::of(mountpoint).ok().filter(|_| mountpoint.file_name() == self.directory.file_name());
            self.parent.is_some() && name.and_then(|name| inode_of(&name)) == self.parent
        };
        mountpoint == self.directory || is_renamed()
    }

    /// Unmounts this mount and no other.
    ///
    /// # Errors
    /// It is no longer on its directory, another mount covers it, it is in use, or this user may not unmount it.
    pub fn unmount(&self, detach: Detach) -> Result<(), UnmountError> {
        for _ in 0..LOOKS_MAX {
            let Ok(table) = MountTable::read() else {
                let result = rustix::mount::unmount(&self.directory, flags(detach));
                return result.map_err(|error| UnmountReason::of(error).at(&self.directory));
            };
            let entry = self.entry(&table).ok_or_else(|| UnmountReason::NotMounted.at(&self.directory))?;
            let name = NameInParent::of(&entry.mountpoint);
            if let Ok(name) = name
                && mount_id(name.parent(), name.name()) == Some(entry.id)
            {
                return unmount_name(&name, detach, &entry.mountpoint);
            }
        }
        Err(UnmountReason::Covered.at(&self.directory))
    }
}

/// Unmounts the mount on a name, which messages call `path`.
fn unmount_name(name: &NameInParent, detach: Detach, path: &Path) -> Result<(), UnmountError> {
    let result = match rustix::mount::unmount(name.path(), flags(detach)) {
        Err(Errno::PERM) => fusermount::unmount(name, detach == Detach::Lazily).map_err(|message| match message {
            Some(message) if message.contains("busy") => UnmountReason::Busy,
            Some(explanation) => UnmountReason::NoPermission { explanation },
            None => UnmountReason::NoPermission {
                explanation: "users other than root need fusermount3, from the package fuse3".to_owned(),
            },
        }),
        result => result.map_err(UnmountReason::of),
    };
    result.map_err(|reason| reason.at(path))
}

pub(crate) fn flags(detach: Detach) -> UnmountFlags {
    match detach {
        Detach::Never => UnmountFlags::NOFOLLOW,
        Detach::Lazily => UnmountFlags::NOFOLLOW | UnmountFlags::DETACH,
    }
}

/// The mount ID and the device number of the topmost mount on a name, if the table says that a program serves it.
fn served_in_table(name: &NameInParent) -> Option<(u32, (u32, u32))> {
    let mount_id = mount_id(name.parent(), name.name())?;
    let table = MountTable::read().ok()?;
    table.with_id(mount_id).filter(|entry| entry.is_served()).map(|entry| (entry.id, entry.device))
}

/// The identity of the directory with a name.
fn inode_of(name: &NameInParent) -> Option<(u32, u32, u64)> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::NO_AUTOMOUNT | DONT_SYNC;
    let stat = statx(name.parent(), c"", flags, StatxFlags::INO).ok()?;
    Some((stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino))
}

/// The device number of the files under a name, and the mount ID in mountinfo, which a program that admits only its user does not keep
/// from others.
fn numbers_of(parent: BorrowedFd<'_>, name: &Path) -> Option<((u32, u32), u32)> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | DONT_SYNC;
    let stat = statx(parent, name, flags, StatxFlags::empty()).ok()?;
    let mount_id = u32::try_from(stat.stx_mnt_id).ok().filter(|_| stat.stx_mask & MOUNT_ID.bits() != 0)?;
    Some(((stat.stx_dev_major, stat.stx_dev_minor), mount_id))
}

/// The device number of the files under a name.
fn device_of(name: &NameInParent) -> Option<(u32, u32)> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | DONT_SYNC;
    let stat = statx(name.parent(), name.name(), flags, StatxFlags::empty()).ok()?;
    Some((stat.stx_dev_major, stat.stx_dev_minor))
}
