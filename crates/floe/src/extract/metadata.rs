//! Sets owners, modes, extended attributes and times of extracted entries.

use std::{
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

use super::{
    ExtractOptions, Ledger, XattrSelection,
    outcome::{ExtractAction, ExtractOmission, ExtractPart, ExtractWarningCause},
    tree::{Identity, is_preloaded},
};
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

/// The attributes that were left out, or why the entry cannot be finished.
pub(super) type Finished = Result<Vec<ExtractOmission>, ExtractWarningCause>;

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
    pub(super) fn finish_open(&self, file: &File, attr: &Attr) -> Finished {
        let mut omitted = Vec::new();
        // The owner comes first, because changing it clears set-id bits and capabilities. Extended attributes come
        // before the mode, because the mode may forbid writing them.
        let owned = self.own(attr, &mut omitted, |uid, gid| fchown(file, Some(uid.as_raw()), Some(gid.as_raw())))?;
        self.set_xattrs(attr, &mut omitted, |name, value| fsetxattr(file, name, value, XattrFlags::empty()))?;
        let mode = file.set_permissions(self.permissions(attr, owned));
        keep_going(mode, ExtractPart::Mode, ExtractAction::Mode, &mut omitted)?;
        if self.options.times {
            let time = futimens(file, &self.times(attr));
            keep_going(time, ExtractPart::Time, ExtractAction::Time, &mut omitted)?;
        }
        Ok(omitted)
    }

    /// Finishes a link or special file that was created in `directory` under `name`. If a link has replaced the entry
    /// meanwhile, it is not followed.
    pub(super) fn finish_named(&self, directory: BorrowedFd<'_>, name: &[u8], attr: &Attr) -> Finished {
        let here = AtFlags::SYMLINK_NOFOLLOW;
        let mut omitted = Vec::new();
        let owned =
            self.own(attr, &mut omitted, |uid, gid| Ok(chownat(directory, name, Some(uid), Some(gid), here)?))?;
        self.set_xattrs(attr, &mut omitted, |name_of_xattr, value| {
            // No function takes a descriptor and a name.
            let path = magic_link(directory).join(OsStr::from_bytes(name));
            match lsetxattr(path, name_of_xattr, value, XattrFlags::empty()) {
                // Without /proc there is no way to it.
                Err(Errno::NOENT) => Err(Errno::NOTSUP),
                set => set,
            }
        })?;
        if attr.file_type != FileType::Symlink {
            let mode = set_permissions(directory, name, self.permissions(attr, owned));
            keep_going(mode, ExtractPart::Mode, ExtractAction::Mode, &mut omitted)?;
        }
        if self.options.times {
            let time = utimensat(directory, name, &self.times(attr), here);
            keep_going(time, ExtractPart::Time, ExtractAction::Time, &mut omitted)?;
        }
        Ok(omitted)
    }

    /// Sets owner and group. Returns whether both are now those of the image.
    fn own(
        &self,
        attr: &Attr,
        omitted: &mut Vec<ExtractOmission>,
        set: impl FnOnce(Uid, Gid) -> io::Result<()>,
    ) -> Result<bool, ExtractWarningCause> {
        // To the kernel, the number −1 means "unchanged": no file can have it.
        let is_impossible = attr.uid == u32::MAX || attr.gid == u32::MAX;
        if !self.options.owners {
            return Ok(!is_impossible && attr.uid == self.euid.as_raw() && attr.gid == self.egid.as_raw());
        }
        let owned = if is_impossible {
            Err(Errno::INVAL.into())
        } else {
            set(Uid::from_raw(attr.uid), Gid::from_raw(attr.gid))
        };
        let is_owned = owned.is_ok();
        keep_going(owned, ExtractPart::Owner, ExtractAction::Owner, omitted)?;
        Ok(is_owned)
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
        omitted: &mut Vec<ExtractOmission>,
        mut set: impl FnMut(&[u8], &[u8]) -> rustix::io::Result<()>,
    ) -> Result<(), ExtractWarningCause> {
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
                Err(
                    error @ (Errno::PERM | Errno::ACCESS | Errno::NOTSUP | Errno::NOSPC | Errno::TOOBIG | Errno::RANGE),
                ) => omitted.push(ExtractOmission { part: ExtractPart::Xattr(name.to_vec()), error: error.into() }),
                Err(error) => outcome = Err(ExtractWarningCause::Target(ExtractAction::Xattr, error.into())),
            }
            if outcome.is_ok() && !self.ledger.is_over() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        outcome?;
        read.map_err(ExtractWarningCause::Image)?;
        Ok(())
    }
}

/// Lists an attribute among those that were left out, if it could not be set because this user lacks a privilege or the
/// target file system lacks support. Other errors are failures.
fn keep_going(
    set: Result<(), impl Into<io::Error>>,
    part: ExtractPart,
    action: ExtractAction,
    omitted: &mut Vec<ExtractOmission>,
) -> Result<(), ExtractWarningCause> {
    let Err(error) = set.map_err(Into::into) else { return Ok(()) };
    match Errno::from_io_error(&error) {
        Some(Errno::PERM | Errno::ACCESS | Errno::INVAL | Errno::NOTSUP | Errno::NOSYS) => {
            omitted.push(ExtractOmission { part, error });
            Ok(())
        }
        _ => Err(ExtractWarningCause::Target(action, error)),
    }
}

/// Lets this user create entries in a directory of theirs that existed before. Errors are left for the first entry to
/// report.
pub(super) fn permit_entries(directory: BorrowedFd<'_>) {
    if let Ok(found) = fstat(directory)
        && found.st_uid == rustix::process::geteuid().as_raw()
    {
        let mode = Mode::from_raw_mode(found.st_mode);
        if !mode.contains(Mode::RWXU) {
            let permissions = Permissions::from_mode((mode | Mode::RWXU).as_raw_mode());
            let _ = std::fs::set_permissions(magic_link(directory), permissions);
        }
    }
}

/// Sets the mode of a directory entry. If a link has replaced it, the link is not followed.
fn set_permissions(directory: BorrowedFd<'_>, name: &[u8], permissions: Permissions) -> io::Result<()> {
    // A handle that permits neither reading nor writing.
    let handle = openat(directory, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    match std::fs::set_permissions(magic_link(handle.as_fd()), permissions.clone()) {
        // /proc is not mounted. A preloaded library would not see the other way.
        Err(error) if error.kind() == io::ErrorKind::NotFound && !is_preloaded() => {
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
