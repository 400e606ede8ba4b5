//! Messages between processes of Floe.
//!
//! [`Encoded`] is the encoding of all of them: between a process that serves a mount and its keeper, and within the service.
//! The service is a process that mounts many images; [`ServiceClient`] asks it with the messages of [`protocol`].

#![forbid(unsafe_code)]

mod client;
mod codec;
pub mod protocol;

pub use client::{ClientError, MountFiles, ServiceClient, ServiceMount, USERS_SOCKET, socket_path};
pub use codec::{DESCRIPTORS_MAX, Encoded, MESSAGE_BYTES_MAX, TEXT_BYTES_MAX, receive, receive_alone, send};
