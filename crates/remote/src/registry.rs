//! Access to OCI registries.

mod blob;
mod challenge;
mod credentials;
mod document;
mod endpoint;
mod hosts_file;
mod manifest;
mod push;
mod resolve;
mod tokens;
mod upload;

use std::sync::Arc;

use crate::http_client::HttpClient;

pub(crate) use blob::BlobOrigin;
pub(crate) use manifest::Layer;
pub use push::{ImageToPush, Pushed, PushedFormat};
pub(crate) use resolve::ResolvedBlob;

/// The state that all requests to registries share.
#[derive(Clone)]
pub(crate) struct Registries {
    client: HttpClient,
    tokens: Arc<tokens::Tokens>,
    /// Whether plain HTTP is used for all registries.
    plain_http: bool,
}

impl Registries {
    pub(crate) fn new(client: HttpClient, plain_http: bool) -> Self {
        Self { tokens: Arc::new(tokens::Tokens::new(client.clone())), client, plain_http }
    }
}
