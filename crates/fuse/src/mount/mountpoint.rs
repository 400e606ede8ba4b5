//! Mountpoints.

use std::{io, os::fd::OwnedFd, path::Path};

use floe_fuse_wire as wire;
use floe_keeper::{Directory, MountTable};
use rustix::{
    fs::{AtFlags, FileType, StatxFlags, statx},
    io::Errno,
};

use super::error::MountError;

/// The place where an image is mounted.
#[derive(Debug)]
pub enum Mountpoint {
    /// A directory.
    Directory(Directory),
    /// A descriptor of `/dev/fuse` with which another program mounts the image.
    Descriptor(OwnedFd),
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
        Self::of_open(Directory::open(path).map_err(failed)?, path)
    }

    /// The mountpoint of an open directory, which errors call `path`.
    ///
    /// # Errors
    /// As [`Mountpoint::find`].
    pub fn of_open(directory: Directory, path: &Path) -> Result<Self, MountError> {
        let failed = |error| MountError::Directory { path: path.to_owned(), error };
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
        // Reading the table takes milliseconds if there are a thousand mounts.
        if directory.may_be_mountpoint()
            && let Ok(table) = MountTable::read()
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

/// Checks that a descriptor is one of `/dev/fuse`: character device 10:229.
fn check_device(descriptor: &OwnedFd) -> io::Result<()> {
    let stat = rustix::fs::fstat(descriptor)?;
    let is_fuse = FileType::from_raw_mode(stat.st_mode).is_char_device()
        && (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev)) == (10, 229);
    if is_fuse { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ENODEV)) }
}
