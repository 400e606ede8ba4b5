//! Fetches a remote image in a separate process, so that the process that parses the image has no network and no
//! credentials.

mod client;
mod message;
mod server;

pub use client::RemoteProcess;
pub use server::serve;
