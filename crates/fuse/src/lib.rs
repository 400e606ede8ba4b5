//! The FUSE edge: mounts an image and serves it to the kernel.
//!
//! [`Mount`] mounts a [`Reader`](floe_engine::Reader) on a directory and serves it until it is unmounted: as root with
//! `mount(2)`, as a user with `fusermount3`. The edge only translates requests of the kernel into calls of the
//! [`FileSystem`](floe_image::FileSystem) and the reader, and their results into replies, which any thread may send.
//! Because an image never changes, all replies that the kernel can cache are valid forever.
//!
//! Every request has a deadline: if the source of the image is stuck, its clients get `EIO` instead of waiting forever.

mod caller;
mod connection;
mod edge;
mod inodes;
mod mount;
mod mounting;
mod requests;
mod session_pool;

pub use connection::rings::Rings;
pub use edge::front_pages::FrontImage;
pub use mount::{
    Abandoner, Ended, Mount,
    handover::{ConnectionTerms, Handover, Inherited, PauseError, Paused, PausedMount},
    transport::Transport,
};
pub use mounting::{
    directory::Directory,
    error::MountError,
    front::FrontRefusal,
    front_transfer::FrontRange,
    keeper::{Keeper, Kept, UsersOf},
    launch_walk::{LaunchWalk, WalkAction, WalkBatch, Walked},
    limited_unmount::unmount_within,
    mountpoint::Mountpoint,
    options::{Access, FaultSink, KernelFlags, MountOptions, ReadSink, Readdir, Touch, TouchSink},
    passed_sys::passed_descriptors,
    relay::{Permits, Relay},
    table::{MountEntry, MountTable},
    unmount::{Detach, UnmountError, Unmounter, unmount},
};
pub use requests::counts::{FaultKind, RequestCounts, RequestKind};
pub use requests::deadline::Progress;
