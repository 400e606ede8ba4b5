//! The FUSE edge: negotiation, dispatch, replies, errno.
//!
//! [`Mount`] mounts a [`Reader`](floe_engine::Reader) on a directory and serves it until it is unmounted, as root through
//! `mount(2)` and as a user through `fusermount3`. The edge is thin: it turns requests of the kernel into calls of the
//! [`FileSystem`](floe_image::FileSystem) and the reader, and their results into replies, which may be sent from any
//! thread. Because the image never changes, everything that the kernel can cache is given to it without an end.
//!
//! Every request has a deadline: where the source of the image is stuck, its clients get `EIO` in place of waiting
//! without end.

mod caller;
mod connection;
mod edge;
mod inodes;
mod mount;
mod mounting;
mod requests;
mod session_pool;

pub use edge::front_pages::FrontImage;
pub use mount::{Ended, Mount};
pub use mounting::{
    error::MountError,
    front::FrontRefusal,
    front_readahead::FrontRange,
    keeper::{Keeper, Kept, UsersOf},
    mountpoint::Mountpoint,
    options::{Access, FaultSink, KernelFlags, MountOptions, ReadSink, Readdir},
    table::{MountEntry, MountTable},
    unmount::{Detach, UnmountError, Unmounter, unmount},
};
pub use requests::counts::{FaultKind, RequestCounts, RequestKind};
