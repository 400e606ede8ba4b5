//! Mounting and unmounting: as root, through fusermount3, or through a keeper; the kernel's EROFS in front; the mount
//! table.

mod abort;
pub(crate) mod directory;
pub(crate) mod error;
mod fork_sys;
pub(crate) mod front;
mod front_files_sys;
pub(crate) mod front_transfer;
pub(crate) mod fusermount;
pub(crate) mod keeper;
pub(crate) mod launch_walk;
pub(crate) mod limited_unmount;
mod mount_id_sys;
pub(crate) mod mountpoint;
pub(crate) mod options;
mod parent_sys;
pub(crate) mod passed_sys;
pub(crate) mod place;
mod private_namespace_sys;
pub(crate) mod read_ahead;
pub(crate) mod relay;
pub(crate) mod table;
pub(crate) mod unmount;
