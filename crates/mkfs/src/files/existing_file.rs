//! A file that an image replaces: the attributes that the image inherits, and copies into files that cannot be replaced.

use std::{
    fs::{File, Metadata, Permissions},
    io,
    os::unix::fs::{FileExt, MetadataExt, PermissionsExt, fchown},
    path::Path,
};

use rustix::{
    fs::{FallocateFlags, XattrFlags, fremovexattr, fsetxattr},
    io::Errno,
};

use crate::tree::xattrs::{ACL_ACCESS, Acl, Xattr, names_at, value_at};

/// The set-user-id and set-group-id bits.
const SET_ID_BITS: u32 = 0o6000;
/// The mode bits of the group.
const GROUP_BITS: u32 = 0o070;
/// Prefixes of xattrs that describe the content of a file or its place in an overlay, not the access to it.
const CONTENT_XATTRS: [&[u8]; 4] = [b"security.ima", b"security.evm", b"security.capability", b"trusted.overlay."];

/// The owner, mode and xattrs of a replaced file.
pub(crate) struct ReplacedFile {
    mode: u32,
    uid: u32,
    gid: u32,
    /// The access control list.
    acl: Option<Acl>,
    /// The other xattrs.
    xattrs: Vec<Xattr>,
}

impl ReplacedFile {
    /// The attributes of the file at `path` with this status.
    pub(crate) fn of(path: &Path, status: &Metadata) -> io::Result<Self> {
        let (mut acl, mut xattrs) = (None, Vec::new());
        let names = match names_at(path) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Vec::new(),
            names => names?,
        };
        for name in names.into_iter().filter(|name| !CONTENT_XATTRS.iter().any(|prefix| name.starts_with(prefix))) {
            if *name == *ACL_ACCESS {
                acl = value_at(path, &name)?.as_deref().and_then(Acl::of_attribute);
            } else if let Ok(Some(value)) = value_at(path, &name) {
                xattrs.push((name, value));
            }
        }
        Ok(Self { mode: status.mode() & 0o7777, uid: status.uid(), gid: status.gid(), acl, xattrs })
    }

    /// Applies the mode, the access control list and, as far as permitted, the owner and the other xattrs to a file. If the
    /// group cannot be kept, the new group gets the permissions of others only.
    pub(crate) fn pass_on(&self, file: &File) -> io::Result<()> {
        let status = file.metadata()?;
        let has_owner = status.uid() == self.uid || fchown(file, Some(self.uid), None).is_ok();
        let has_group = status.gid() == self.gid || fchown(file, None, Some(self.gid)).is_ok();
        for (name, value) in &self.xattrs {
            let _ = fsetxattr(file, &**name, value, XattrFlags::empty());
        }
        let mut mode = self.mode;
        if !has_owner || !has_group {
            mode &= !SET_ID_BITS;
        }
        let others = u8::try_from(mode & 0o007).unwrap_or(0);
        // With a list, the mode's group bits are the mask, which may permit more than the group has.
        let group = match &self.acl {
            _ if !has_group => Some(others),
            Some(acl) => Some(acl.group_rights()),
            None => None,
        };
        if let Some(group) = group {
            mode = mode & !GROUP_BITS | u32::from(group) << 3;
        }
        // The file may have a list from its directory.
        let _ = fremovexattr(file, ACL_ACCESS);
        file.set_permissions(Permissions::from_mode(mode))?;
        if let Some(mut acl) = self.acl.clone() {
            if !has_group {
                acl.set_group_rights(others);
            }
            // A file system without lists leaves the narrower mode.
            let _ = fsetxattr(file, ACL_ACCESS, &acl.to_bytes(), XattrFlags::empty());
        }
        Ok(())
    }
}

/// The copy size in bytes.
const COPY_LEN: usize = 1 << 20;

/// Why a file was not overwritten.
pub(crate) enum OverwriteError {
    /// It is as before.
    Untouched(io::Error),
    /// It has a part of the new content, and its head is zero.
    Incomplete(io::Error),
}

/// Copies `file` into `target`. The bytes of `head_len` from `head_offset` on are zero until everything else is stored,
/// so that an interrupted copy leaves no superblock. The space is reserved before anything is overwritten.
pub(crate) fn overwrite(target: &File, file: &File, head_offset: u64, head_len: usize) -> Result<(), OverwriteError> {
    let len = file.metadata().map_err(OverwriteError::Untouched)?.len();
    reserve(target, len).map_err(OverwriteError::Untouched)?;
    copy_all(target, file, len, head_offset, head_len).map_err(OverwriteError::Incomplete)
}

/// Reserves space for `len` bytes, on file systems that support that.
fn reserve(target: &File, len: u64) -> io::Result<()> {
    let len_before = target.metadata()?.len();
    match rustix::fs::fallocate(target, FallocateFlags::empty(), 0, len) {
        Err(error @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) => {
            target.set_len(len_before)?;
            Err(error.into())
        }
        // The writes will show whether there is room.
        _ => Ok(()),
    }
}

fn copy_all(target: &File, file: &File, len: u64, head_offset: u64, head_len: usize) -> io::Result<()> {
    target.write_all_at(&vec![0; head_len], head_offset)?;
    target.sync_data()?;
    let head_end = head_offset + head_len as u64;
    copy(target, file, 0, head_offset)?;
    copy(target, file, head_end, len)?;
    target.set_len(len)?;
    target.sync_data()?;
    copy(target, file, head_offset, head_end.min(len))?;
    target.sync_all()
}

fn copy(target: &File, file: &File, start: u64, end: u64) -> io::Result<()> {
    let mut buffer = vec![0; COPY_LEN];
    let mut offset = start;
    while offset < end {
        let len = usize::try_from(end - offset).unwrap_or(usize::MAX).min(COPY_LEN);
        file.read_exact_at(&mut buffer[..len], offset)?;
        target.write_all_at(&buffer[..len], offset)?;
        offset += len as u64;
    }
    Ok(())
}
