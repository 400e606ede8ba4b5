//! The FUSE protocol of Linux, and its transport over `/dev/fuse`.
//!
//! A [`Channel`] is a connection to the kernel. [`Channel::negotiate`] settles what both sides do; after it,
//! [`Channel::receive`] gives one [`Request`] at a time, together with its [`Reply`]. A reply may be sent from any thread. It
//! is sent exactly once: a reply that is dropped answers `EIO`. [`Notifier`] sends what the kernel did not ask for.
//!
//! The protocol is that of version 7.31 (Linux 5.4) to 7.45 (Linux 6.18). Requests are parsed with bounds checks: a request
//! that breaks the protocol is an error and never a panic. Data of replies are not copied on their way to the kernel.
//!
//! The crate knows no file systems, no threads and no mounting.

pub mod abi;
mod channel;
mod device_sys;
mod directory_entries;
mod flags;
mod handshake;
mod notifier;
mod opcode;
mod reply;
mod request;

pub use channel::{Channel, Receipt, Received, RequestBuffer};
pub use device_sys::{DEVICE, duplicate, open};
pub use directory_entries::{DirectoryEntries, DirectoryEntry};
pub use flags::{InitFlags, OpenFlags};
pub use handshake::{Agreement, Offer, Terms};
pub use notifier::Notifier;
pub use opcode::Opcode;
pub use reply::Reply;
pub use request::{Malformed, Operation, Request};
pub use rustix::io::Errno;

/// The node number of the root, which the protocol fixes.
pub const ROOT_NODE: u64 = 1;
