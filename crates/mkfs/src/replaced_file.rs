//! The attributes that an image inherits from the file it replaces.

use std::{
    fs::{File, Metadata, Permissions},
    io,
    os::unix::fs::{MetadataExt, PermissionsExt, fchown},
};

/// The set-user-id and set-group-id bits.
const SET_ID_BITS: u32 = 0o6000;
/// The mode bits of the group.
const GROUP_BITS: u32 = 0o070;

/// The owner and mode of a replaced file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ReplacedFile {
    mode: u32,
    uid: u32,
    gid: u32,
}

impl ReplacedFile {
    pub(crate) fn of(status: &Metadata) -> Self {
        Self { mode: status.mode() & 0o7777, uid: status.uid(), gid: status.gid() }
    }

    /// Applies the mode and, if permitted, the owner to a file. If the group cannot be kept, the new group gets the
    /// permissions of others only.
    pub(crate) fn pass_on(&self, file: &File) -> io::Result<()> {
        let status = file.metadata()?;
        let has_owner = status.uid() == self.uid || fchown(file, Some(self.uid), None).is_ok();
        let has_group = status.gid() == self.gid || fchown(file, None, Some(self.gid)).is_ok();
        let mut mode = self.mode;
        if !has_owner || !has_group {
            mode &= !SET_ID_BITS;
        }
        if !has_group {
            mode = mode & !GROUP_BITS | (mode & 0o007) << 3;
        }
        file.set_permissions(Permissions::from_mode(mode))
    }
}
