//! Sets owners, modes, extended attributes and times of extracted entries.

use std::{
    env,
    ffi::OsStr,
    fs::{File, Permissions},
    io,
    ops::ControlFlow,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::{
            ffi::OsStrExt,
            fs::{PermissionsExt, fchown},
        },
    },
    path::PathBuf,
};

use rustix::fs::{
    AtFlags, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags, chmodat, chownat, fsetxattr, fstat, futimens,
    lsetxattr, openat, utimensat,
};
use rustix::io::Errno;

use super::{ExtractOptions, Ledger, XattrSelection, ledger::Denied, tree::Identity};
use crate::{Attr, FileType, Image, Timestamp, Xattr};

/// The set-user-id and set-group-id bits.
const SET_ID_BITS: u16 = 0o6000;

/// Sets the attributes of extracted entries.
///
/// Owners and modes are set by functions of the C library, which fakeroot and pseudo replace. rustix makes system calls for
/// `fchown`, `fchmod` and `chmodat` with every backend; the standard library does not.
pub(super) struct Metadata<'a> {
    image: &'a Image,
    options: &'a ExtractOptions,
    ledger: &'a Ledger<'a>,
    euid: Uid,
    egid: Gid,
    umask: u16,
}

/// The error of an attribute, with the failed action.
pub(super) type Failed = super::ledger::ExtractWarningCause;

impl<'a> Metadata<'a> {
    pub(super) fn new(image: &'a Image, options: &'a ExtractOptions, ledger: &'a Ledger<'a>) -> Self {
        Self {
            image,
            options,
            ledger,
            euid: rustix::process::geteuid(),
            egid: rustix::process::getegid(),
            umask: if options.modes { 0 } else { umask() },
        }
    }

    /// Finishes an open regular file or directory.
    pub(super) fn finish_open(&self, file: &File, attr: &Attr) -> Result<(), Failed> {
        // The owner comes first, because changing it clears set-id bits and capabilities. Extended attributes come
        // before the mode, because the mode may forbid writing them.
        let owned = self.own(attr, |uid, gid| fchown(file, Some(uid.as_raw()), Some(gid.as_raw())))?;
        self.set_xattrs(attr, |name, value| fsetxattr(file, name, value, XattrFlags::empty()))?;
        file.set_permissions(self.permissions(attr, owned)).map_err(|error| failed("cannot set the mode", error))?;
        if self.options.times {
            futimens(file, &self.times(attr)).map_err(|error| failed("cannot set the time", error))?;
        }
        Ok(())
    }

    /// Finishes a link or special file that was created in `directory` under `name`. If a link has replaced the entry
    /// meanwhile, it is not followed.
    pub(super) fn finish_named(&self, directory: BorrowedFd<'_>, name: &[u8], attr: &Attr) -> Result<(), Failed> {
        let here = AtFlags::SYMLINK_NOFOLLOW;
        let owned = self.own(attr, |uid, gid| Ok(chownat(directory, name, Some(uid), Some(gid), here)?))?;
        self.set_xattrs(attr, |name_of_xattr, value| {
            // No function takes a descriptor and a name.
            let path = magic_link(directory).join(OsStr::from_bytes(name));
            match lsetxattr(path, name_of_xattr, value, XattrFlags::empty()) {
                // Without /proc there is no way to it.
                Err(Errno::NOENT) => Err(Errno::NOTSUP),
                set => set,
            }
        })?;
        if attr.file_type != FileType::Symlink {
            set_permissions(directory, name, self.permissions(attr, owned))
                .map_err(|error| failed("cannot set the mode", error))?;
        }
        if self.options.times {
            utimensat(directory, name, &self.times(attr), here)
                .map_err(|error| failed("cannot set the time", error))?;
        }
        Ok(())
    }

    /// Sets owner and group. Returns whether both are now those of the image.
    fn own(&self, attr: &Attr, set: impl FnOnce(Uid, Gid) -> io::Result<()>) -> Result<bool, Failed> {
        // To the kernel, the number −1 means "unchanged": no file can have it.
        if attr.uid == u32::MAX || attr.gid == u32::MAX {
            self.ledger.count_denied(Denied::Owner);
            return Ok(false);
        }
        let (uid, gid) = (Uid::from_raw(attr.uid), Gid::from_raw(attr.gid));
        if !self.options.owners {
            return Ok(uid == self.euid && gid == self.egid);
        }
        match set(uid, gid) {
            Ok(()) => Ok(true),
            Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::PERM | Errno::INVAL)) => {
                self.ledger.count_denied(Denied::Owner);
                Ok(false)
            }
            Err(error) => Err(failed("cannot set the owner", error)),
        }
    }

    /// The mode to set. A file without its original owner gets no set-id bits.
    fn permissions(&self, attr: &Attr, owned: bool) -> Permissions {
        let kept = if owned { attr.permissions } else { attr.permissions & !SET_ID_BITS };
        Permissions::from_mode(u32::from(kept & !self.umask))
    }

    fn times(&self, attr: &Attr) -> Timestamps {
        let Timestamp { seconds, nanoseconds } = self.options.time.unwrap_or(attr.modified);
        let time = Timespec { tv_sec: seconds, tv_nsec: i64::from(nanoseconds.min(999_999_999)) };
        Timestamps { last_access: time, last_modification: time }
    }

    fn set_xattrs(
        &self,
        attr: &Attr,
        mut set: impl FnMut(&[u8], &[u8]) -> rustix::io::Result<()>,
    ) -> Result<(), Failed> {
        if self.options.xattrs == XattrSelection::None {
            return Ok(());
        }
        let mut outcome = Ok(());
        let read = self.image.file_system().xattrs(attr.nid, &mut |Xattr { name, value }| {
            if !self.options.xattrs.includes(name) {
                return ControlFlow::Continue(());
            }
            match set(name, value) {
                Ok(()) => {}
                // Some file systems have room for only a few kilobytes of attributes and report the excess as a lack of
                // space.
                Err(Errno::PERM | Errno::ACCESS | Errno::NOTSUP | Errno::NOSPC | Errno::TOOBIG | Errno::RANGE) => {
                    self.ledger.count_denied(Denied::Xattr);
                }
                Err(error) => outcome = Err(failed("cannot set an extended attribute", error)),
            }
            if outcome.is_ok() && !self.ledger.is_over() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        outcome?;
        read.map_err(Failed::Image)?;
        Ok(())
    }
}

fn failed(doing: &'static str, error: impl Into<io::Error>) -> Failed {
    Failed::Target(doing, error.into())
}

/// Sets the mode of a directory entry. If a link has replaced it, the link is not followed.
fn set_permissions(directory: BorrowedFd<'_>, name: &[u8], permissions: Permissions) -> io::Result<()> {
    // A handle that permits neither reading nor writing.
    let handle = openat(directory, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    match std::fs::set_permissions(magic_link(handle.as_fd()), permissions.clone()) {
        // /proc is not mounted. A preloaded library would not see the other way.
        Err(error) if error.kind() == io::ErrorKind::NotFound && env::var_os("LD_PRELOAD").is_none() => {
            Ok(set_mode_by_name(&handle, directory, name, Mode::from_raw_mode(permissions.mode()))?)
        }
        set => set,
    }
}

/// Sets the mode of the entry that `handle` refers to, by its name, which no link has taken over.
fn set_mode_by_name(handle: &OwnedFd, directory: BorrowedFd<'_>, name: &[u8], mode: Mode) -> rustix::io::Result<()> {
    let handle = handle.as_fd();
    if rustix::fs::FileType::from_raw_mode(fstat(handle)?.st_mode).is_symlink()
        || Identity::of(handle)? != Identity::of_entry(directory, name)?
    {
        return Err(Errno::LOOP);
    }
    chmodat(directory, name, mode, AtFlags::empty())
}

/// The path in `/proc` that leads to exactly the object of a handle.
fn magic_link(handle: BorrowedFd<'_>) -> PathBuf {
    format!("/proc/self/fd/{}", handle.as_raw_fd()).into()
}

/// The bits that new files of this process do not get.
fn umask() -> u16 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    mask.and_then(|mask| u16::from_str_radix(mask.trim(), 8).ok()).unwrap_or(0o022)
}

/// Whether an error of the target means that this user may not create devices.
pub(super) fn is_denied(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}
