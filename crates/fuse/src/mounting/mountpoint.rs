//! Mountpoints, and mounting on directories.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::Path,
};

use floe_fuse_wire as wire;
use rustix::{
    fs::{AtFlags, FileType, StatxFlags, statx},
    io::Errno,
    mount::{MountFlags, mount},
    thread::{CapabilitySet, capabilities},
};

use crate::{
    Access, MountError, MountOptions, MountTable, mounting::directory::Directory, mounting::fusermount,
    mounting::fusermount::AutoUnmount, mounting::place::Place, mounting::private_namespace_sys::in_directory,
};

/// The place where an image is mounted.
#[derive(Debug)]
pub enum Mountpoint {
    /// A directory.
    Directory(Directory),
    /// A descriptor of `/dev/fuse` with which another program mounts the image.
    Descriptor(OwnedFd),
}

/// A mount that is not served yet.
pub(crate) struct Connected {
    pub(crate) device: OwnedFd,
    pub(crate) auto_unmount: Option<AutoUnmount>,
}

impl Mountpoint {
    /// The mountpoint at a path: a directory, or `/dev/fd/N` for an open descriptor of `/dev/fuse`, which container runtimes
    /// pass.
    ///
    /// # Errors
    /// The path is not a directory, is the root directory, is a dead mount, or has a mount that a program serves already.
    pub fn find(path: &Path) -> Result<Self, MountError> {
        // A descriptor can also be that of a directory.
        if let Ok(number) = path.strip_prefix("/dev/fd")
            && number.components().count() == 1
            && !path.is_dir()
        {
            return match number.to_str().and_then(|number| number.parse().ok()).ok_or(libc::EBADF) {
                Ok(number) => wire::duplicate(number).and_then(|descriptor| {
                    check_device(&descriptor)?;
                    Ok(Self::Descriptor(descriptor))
                }),
                Err(errno) => Err(io::Error::from_raw_os_error(errno)),
            }
            .map_err(|error| MountError::Descriptor { path: path.to_owned(), error });
        }
        let failed = |error| MountError::Directory { path: path.to_owned(), error };
        let directory = Directory::open(path).map_err(failed)?;
        // Without the time of creation, the kernel would answer from its cache for a dead mount.
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        let stat = match statx(&directory, c"", AtFlags::EMPTY_PATH, wanted) {
            Err(Errno::NOTCONN) => return Err(MountError::Dead(path.to_owned())),
            result => result.map_err(|error| failed(error.into()))?,
        };
        if !FileType::from_raw_mode(stat.stx_mode.into()).is_dir() {
            return Err(MountError::NotADirectory(path.to_owned()));
        }
        if directory.path() == Path::new("/") {
            // Paths would still resolve to the file system below the mount. An unmount would remount that file system
            // read-only.
            return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "it is the root directory")));
        }
        if let Ok(table) = MountTable::read()
            && let Some(entry) = table.on(directory.path()).filter(|entry| entry.is_served())
        {
            return Err(MountError::Mounted {
                path: path.to_owned(),
                source: entry.image().to_string_lossy().into_owned(),
            });
        }
        Ok(Self::Directory(directory))
    }
}

/// Mounts on a directory: directly if this process may, else through fusermount3. Returns the place of the mount too.
///
/// # Errors
/// The device cannot be opened, or the kernel or fusermount3 refuses.
pub(crate) fn connect(directory: &Directory, options: &MountOptions) -> Result<(Connected, Place), MountError> {
    if !may_mount() || options.auto_unmount {
        return fusermount::mount(directory, options);
    }
    let device = wire::open().map_err(MountError::Device)?;
    match mount_directly(directory, &device, options) {
        Ok(()) => Ok((Connected { device, auto_unmount: None }, Place::on(directory))),
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => match fusermount::mount(directory, options) {
            Err(MountError::NoFusermount) => Err(MountError::Refused { path: directory.path().to_owned(), error }),
            result => result,
        },
        Err(error) => Err(MountError::Refused { path: directory.path().to_owned(), error }),
    }
}

/// Whether the kernel may let this process mount: for root, or for the capability, which other users have in a user namespace.
fn may_mount() -> bool {
    let has_capability = || capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN));
    rustix::process::geteuid().is_root() || has_capability()
}

fn mount_directly(directory: &Directory, device: &OwnedFd, options: &MountOptions) -> io::Result<()> {
    let mode = rustix::fs::fstat(directory)?.st_mode;
    let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
    let number = device.as_raw_fd();
    let mut data = format!("fd={number},rootmode={mode:o},user_id={},group_id={}", uid.as_raw(), gid.as_raw());
    if options.checks_permissions {
        data.push_str(",default_permissions");
    }
    if options.access() != Access::Owner {
        data.push_str(",allow_other");
    }
    for option in &options.kernel_options {
        data.push(',');
        data.push_str(option);
    }
    let mut flags = MountFlags::RDONLY;
    for (is_set, flag) in [
        (options.flags.nosuid, MountFlags::NOSUID),
        (options.flags.nodev, MountFlags::NODEV),
        (options.flags.noexec, MountFlags::NOEXEC),
        (options.flags.nosymfollow, MountFlags::NOSYMFOLLOW),
    ] {
        flags.set(flag, is_set);
    }
    let data = std::ffi::CString::new(data).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let source = options.source.replace('\0', "");
    let file_system = if options.subtype.is_empty() { "fuse".to_owned() } else { format!("fuse.{}", options.subtype) };
    // In its working directory, a thread needs no path.
    in_directory(directory.as_fd(), || {
        mount(source.as_str(), c".", file_system.as_str(), flags, data.as_c_str())?;
        Ok(())
    })
}

/// Checks that a descriptor is one of `/dev/fuse`: character device 10:229.
fn check_device(descriptor: &OwnedFd) -> io::Result<()> {
    let stat = rustix::fs::fstat(descriptor)?;
    let is_fuse = FileType::from_raw_mode(stat.st_mode).is_char_device()
        && (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev)) == (10, 229);
    if is_fuse { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ENODEV)) }
}
