//! Mounting and unmounting: as root, through fusermount3, or through a [`Keeper`] for a process that is confined.
//!
//! [`Mounted::on`] mounts on a [`Directory`], [`unmount()`] unmounts, and a [`Place`] follows one mount through the mount table. A
//! [`Keeper`] is a process that does so for another one, which reads an image and therefore has no rights. It also mounts the
//! kernel's EROFS in front of a FUSE mount, reads ahead there ([`FrontTransfer`]), and looks up the names of a launch
//! ([`LaunchWalk`]). A service that keeps many mounts has a [`KeptMount`] for each, and mounts for a [`Peer`] of another user with a
//! [`DetachedMount`]. A [`MountCommand`] mounts layers of container images, and an
//! [`IdMapping`] shows them with other owners.
//!
//! The crate serves no requests: a mount that it has made works once another crate serves its connection.

mod abort;
mod caller;
mod command_namespaces_sys;
mod detached;
mod directory;
mod failure;
mod fork_sys;
mod front;
mod front_files_sys;
mod front_readaheads;
mod front_transfer;
mod fuse_configuration;
mod fusermount;
mod id_mapping;
mod idle_sys;
mod keeper;
mod launch_walk;
mod messages;
mod mount;
mod mount_command;
mod mount_id_sys;
mod namespaces_sys;
mod options;
mod owners_sys;
mod parent_sys;
mod peer_namespaces;
mod peer_sys;
mod place;
mod private_namespace_sys;
mod relay;
mod ring_permission;
mod schedule;
mod serving_thread;
mod settings;
mod table;
mod unmount;
mod user_namespace_sys;
mod user_place;

pub use abort::FuseConnections;
pub use caller::is_administrator;
pub use command_namespaces_sys::{enter_own_mount_namespace, separate_children};
pub use detached::{DetachedMount, attach};
pub use directory::Directory;
pub use failure::{FrontRefusal, MountFailure, UnmountError, UnmountReason};
pub use front::{DetachedFront, FrontOptions, HiddenMount, KeptFiles, can_mount_kept};
pub use front_readaheads::{FrontDescriptors, FrontReadaheads, PausedReadaheads};
pub use front_transfer::{FrontRange, FrontTransfer};
pub use fuse_configuration::FuseConfiguration;
pub use fusermount::AutoUnmount;
pub use id_mapping::IdMapping;
pub use idle_sys::run_when_idle;
pub use keeper::{
    FrontOrder, FrontTarget, Keeper, KeeperSocket, KeptAnswer, KeptMount, MadeFront, PendingFront, RingOrder,
};
pub use launch_walk::{LaunchWalk, LaunchWalker, WalkAction, WalkBatch, Walked};
pub use mount::{Mounted, set_readahead};
pub use mount_command::{MountCommand, is_dead, is_mounted, unmount_all};
pub use options::{Access, KernelFlags, KernelOptions};
pub use peer_namespaces::PeerNamespaces;
pub use peer_sys::{Peer, peer_process, user_of_process};
pub use place::{Detach, Place, PlaceNumbers};
pub use relay::{Permits, Relay};
pub use ring_permission::RingPermission;
pub use schedule::{KeeperThread, Schedule};
pub use serving_thread::{mark_serving_thread, may_wait_for_mount};
pub use settings::{KeeperSettings, UsersOf};
pub use table::{MountEntry, MountTable};
pub use unmount::{unmount, unmount_within};
