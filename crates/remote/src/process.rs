//! Fetches a remote image in a separate process, so that the process that parses the image has no network and no
//! credentials.

mod client;
mod fetching;
mod lanes;
mod message;
mod server;
mod several;

pub use client::RemoteProcess;
pub use fetching::FetchingProcess;
pub use lanes::Renewal;
pub use server::serve;
pub use several::serve_several;
