//! The commands, one file each.

pub(crate) mod mount;
pub(crate) mod mount_helper;
pub(crate) mod umount;
