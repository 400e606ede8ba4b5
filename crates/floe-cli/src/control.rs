//! How a mount that runs is asked and told: over a socket that is its user's alone.
//!
//! A question is one line of JSON, and so is its answer. The socket has the name of the mount's device number, so that
//! who asks need not touch the mount itself, which may hang.

mod client;
mod endpoint;
mod message;
mod server;
mod socket_path;

pub(crate) use client::Mounted;
pub(crate) use endpoint::Endpoint;
pub(crate) use message::{Answer, Question};
pub(crate) use server::{Prepared, Server};
