//! The attributes that an image inherits from the file it replaces.

use std::{
    fs::{File, Metadata, Permissions},
    io,
    os::unix::fs::{MetadataExt, PermissionsExt, fchown},
    path::Path,
};

use rustix::{
    fs::{XattrFlags, fremovexattr, fsetxattr},
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
