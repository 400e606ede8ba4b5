//! The FUSE protocol of Linux, and its transport over `/dev/fuse`.
//!
//! A [`Channel`] is a connection to the kernel. [`Channel::negotiate`] performs the handshake. Then
//! [`Channel::receive`] returns one [`Request`] at a time, with its [`Reply`]. Any thread may send the reply, exactly
//! once; dropping it replies `EIO`. A [`Notifier`] sends unsolicited messages to the kernel.
//!
//! The supported versions are 7.31 (Linux 5.4) to 7.45 (Linux 6.18). Requests are parsed with bounds checks: a request
//! that violates the protocol is an error and never a panic. The data of a reply is not copied on its way to the
//! kernel.
//!
//! The crate knows no file systems, no threads and no mounting.

pub mod abi;
mod channel;
mod device_sys;
mod handshake;
mod notifier;
mod receipt;
mod reply;
mod request;
mod ring;
mod ring_core_sys;
mod slot_sys;

pub use abi::{InitFlags, Opcode, OpenFlags};
pub use channel::Channel;
pub use device_sys::{DEVICE, duplicate, open};
pub use handshake::{Agreement, Offer, Terms};
pub use notifier::Notifier;
pub use receipt::{Receipt, Received, RequestBuffer};
pub use reply::{DirectoryEntries, DirectoryEntry, Reply};
pub use request::{Malformed, Operation, Request};
pub use ring::Ring;
pub use rustix::io::Errno;

/// The node number of the root, fixed by the protocol.
pub const ROOT_NODE: u64 = 1;
