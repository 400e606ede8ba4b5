//! The FUSE edge: negotiation, dispatch, replies, errno.
//!
//! [`Mount`] mounts a [`Reader`](floe_engine::Reader) on a directory and serves it until it is unmounted, as root through
//! `mount(2)` and as a user through `fusermount3`. The edge is thin: it turns requests of the kernel into calls of the
//! [`FileSystem`](floe_image::FileSystem) and the reader, and their results into replies, which may be sent from any
//! thread. Because the image never changes, everything that the kernel can cache is given to it without an end.
//!
//! Every request has a deadline: where the source of the image is stuck, its clients get `EIO` in place of waiting
//! without end.

mod attributes;
mod caller;
mod deadline;
mod device_sys;
mod directory;
mod edge;
mod errno;
mod fork_sys;
mod fusermount;
mod keeper;
mod kernel_pages;
mod mount;
mod mount_error;
mod mount_options;
mod mount_table;
mod mountpoint;
mod negotiation;
mod node_numbers;
mod pending;
mod read_ahead;
mod request_counts;
mod rescue;
mod served;
mod session_pool;
mod unmount;

pub use keeper::{Keeper, Kept, UsersOf};
pub use mount::{Ended, Mount};
pub use mount_error::MountError;
pub use mount_options::{Access, FaultSink, KernelFlags, MountOptions, ReadSink, Readdir};
pub use mount_table::{MountEntry, MountTable};
pub use mountpoint::Mountpoint;
pub use request_counts::{FaultKind, RequestCounts, RequestKind};
pub use unmount::{Detach, UnmountError, Unmounter, unmount};
