//! Sets owners, modes, extended attributes and times of extracted entries.

use std::{
    ops::ControlFlow,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::fs::{
    AtFlags, CWD, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags, chmodat, chownat, fchmod, fchown,
    fsetxattr, fstat, futimens, openat, setxattr, utimensat,
};
use rustix::io::Errno;

use super::{
    ExtractOptions, Ledger, XattrSelection,
    outcome::{ExtractAction, ExtractOmission, ExtractPart, ExtractWarningCause},
    tree::Identity,
};
use crate::{Attr, FileType, Image, Timestamp, Xattr};

/// The set-user-id and set-group-id bits.
const SET_ID_BITS: u16 = 0o6000;

/// Sets the attributes of extracted entries.
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
    pub(super) fn finish_open(&self, file: BorrowedFd<'_>, attr: &Attr) -> Finished {
        let mut omitted = Vec::new();
        // The owner comes first, because changing it clears set-id bits and capabilities. Extended attributes come
        // before the mode, because the mode may forbid writing them.
        let owned = self.own(attr, &mut omitted, |uid, gid| fchown(file, uid, gid))?;
        self.set_xattrs(attr, &mut omitted, |name, value| fsetxattr(file, name, value, XattrFlags::empty()))?;
        let mode = fchmod(file, self.mode(attr, owned));
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
        let owned = self.own(attr, &mut omitted, |uid, gid| chownat(directory, name, uid, gid, here))?;
        let mut handle = None;
        self.set_xattrs(attr, &mut omitted, |name_of_xattr, value| {
            let handle = open_handle(&mut handle, directory, name)?;
            match setxattr(magic_link(handle), name_of_xattr, value, XattrFlags::empty()) {
                // Without /proc there is no way to it.
                Err(Errno::NOENT) => Err(Errno::NOTSUP),
                set => set,
            }
        })?;
        if attr.file_type != FileType::Symlink {
            let mode = self.mode(attr, owned);
            let set = open_handle(&mut handle, directory, name).and_then(|handle| {
                match chmodat(CWD, magic_link(handle), mode, AtFlags::empty()) {
                    // /proc is not mounted.
                    Err(Errno::NOENT) => set_mode_by_name(handle, directory, name, mode),
                    set => set,
                }
            });
            keep_going(set, ExtractPart::Mode, ExtractAction::Mode, &mut omitted)?;
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
        set: impl FnOnce(Option<Uid>, Option<Gid>) -> rustix::io::Result<()>,
    ) -> Result<bool, ExtractWarningCause> {
        // To the kernel, the number −1 means "unchanged": no file can have it.
        let is_impossible = attr.uid == u32::MAX || attr.gid == u32::MAX;
        if !self.options.owners {
            return Ok(!is_impossible && attr.uid == self.euid.as_raw() && attr.gid == self.egid.as_raw());
        }
        let owned = if is_impossible {
            Err(Errno::INVAL)
        } else {
            set(Some(Uid::from_raw(attr.uid)), Some(Gid::from_raw(attr.gid)))
        };
        keep_going(owned, ExtractPart::Owner, ExtractAction::Owner, omitted)?;
        Ok(owned.is_ok())
    }

    /// The mode to set. A file without its original owner gets no set-id bits.
    fn mode(&self, attr: &Attr, owned: bool) -> Mode {
        let kept = if owned { attr.permissions } else { attr.permissions & !SET_ID_BITS };
        Mode::from_raw_mode(u32::from(kept & !self.umask))
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
    set: rustix::io::Result<()>,
    part: ExtractPart,
    action: ExtractAction,
    omitted: &mut Vec<ExtractOmission>,
) -> Result<(), ExtractWarningCause> {
    match set {
        Ok(()) => Ok(()),
        Err(error @ (Errno::PERM | Errno::ACCESS | Errno::INVAL | Errno::NOTSUP | Errno::NOSYS)) => {
            omitted.push(ExtractOmission { part, error: error.into() });
            Ok(())
        }
        Err(error) => Err(ExtractWarningCause::Target(action, error.into())),
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
            let _ = chmodat(CWD, magic_link(directory), mode | Mode::RWXU, AtFlags::empty());
        }
    }
}

/// Opens a handle on a directory entry that permits neither reading nor writing. Does not follow links.
fn open_handle<'h>(
    handle: &'h mut Option<OwnedFd>,
    directory: BorrowedFd<'_>,
    name: &[u8],
) -> rustix::io::Result<BorrowedFd<'h>> {
    let opened = match handle.take() {
        Some(opened) => opened,
        None => openat(directory, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?,
    };
    Ok((*handle.insert(opened)).as_fd())
}

/// Sets the mode of the entry that `handle` refers to, by its name, which no link has taken over.
fn set_mode_by_name(
    handle: BorrowedFd<'_>,
    directory: BorrowedFd<'_>,
    name: &[u8],
    mode: Mode,
) -> rustix::io::Result<()> {
    if rustix::fs::FileType::from_raw_mode(fstat(handle)?.st_mode).is_symlink()
        || Identity::of(handle)? != Identity::of_entry(directory, name)?
    {
        return Err(Errno::LOOP);
    }
    chmodat(directory, name, mode, AtFlags::empty())
}

/// The path in `/proc` that leads to exactly the object of a handle.
fn magic_link(handle: BorrowedFd<'_>) -> String {
    use std::os::fd::AsRawFd;
    format!("/proc/self/fd/{}", handle.as_raw_fd())
}

/// The bits that new files of this process do not get.
fn umask() -> u16 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    mask.and_then(|mask| u16::from_str_radix(mask.trim(), 8).ok()).unwrap_or(0o022)
}
