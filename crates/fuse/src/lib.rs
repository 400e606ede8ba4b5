//! The FUSE edge: mounts an image and serves it to the kernel.
//!
//! [`Mount`] mounts a [`Reader`](floe_engine::Reader) on a directory and serves it until it is unmounted: as root with
//! `mount(2)`, as a user with `fusermount3`. The edge only translates requests of the kernel into calls of the
//! [`FileSystem`](floe_image::FileSystem) and the reader, and their results into replies, which any thread may send.
//! Because an image never changes, all replies that the kernel can cache are valid forever.
//!
//! Every request has a deadline: if the source of the image is stuck, its clients get `EIO` instead of waiting forever.

mod connection;
mod edge;
mod inodes;
mod mount;
mod requests;
mod session_pool;
mod setup;

pub use connection::rings::Rings;
pub use edge::front_pages::FrontImage;
pub use floe_keeper::{
    Access, Detach, Directory, FrontRange, FrontRefusal, Keeper, KernelFlags, KernelOptions, UnmountError,
    UnmountReason,
};
pub use mount::{
    Abandoner, Ended, Mount, MountStart,
    error::MountError,
    handover::{ConnectionTerms, Handover, Inherited, PauseError, Paused},
    hidden::negotiate_hidden,
    mountpoint::Mountpoint,
    passed_sys::{InheritedDescriptors, passed_descriptors},
    transport::Transport,
    unmounter::Unmounter,
};
pub use requests::{
    counts::{FaultKind, RequestCounts, RequestKind},
    deadline::Progress,
};
pub use session_pool::Sessions;
pub use setup::{
    AccessSink, EndSink, FaultSink, ImageAccess, MountHandles, MountHooks, MountOptions, MountSetup, ReadSink, Readdir,
};
