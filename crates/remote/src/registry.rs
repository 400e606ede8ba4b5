//! Access to OCI registries.

mod document;
mod endpoint;
mod manifest;
mod push;
mod resolve;
mod upload;

pub(crate) use manifest::Layer;
pub use push::{ImageToPush, Pushed, PushedFormat};
pub(crate) use resolve::{Repository, ResolvedBlob};
