//! A blob of a registry, read from the registry or one of its mirrors.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use floe_remote_cache::Digest;
use http::header;

use crate::{
    fault::Fault,
    origin::Target,
    registry::{
        endpoint::{Endpoint, pull_scope},
        resolve::Repository,
    },
};

/// A blob of a registry, read from the registry or one of its mirrors.
pub(crate) struct BlobOrigin {
    repository: Repository,
    digest: Digest,
    /// The index of the endpoint in use.
    turn: AtomicUsize,
}

impl BlobOrigin {
    pub(crate) fn new(mut repository: Repository, digest: Digest) -> Self {
        repository.endpoints.retain(|endpoint| endpoint.can_pull);
        Self { repository, digest, turn: AtomicUsize::new(0) }
    }

    /// Another blob of the same repository.
    pub(crate) fn sibling(&self, digest: Digest) -> Self {
        Self::new(self.repository.clone(), digest)
    }

    /// The current target of requests.
    ///
    /// # Errors
    /// No host may be contacted.
    pub(crate) async fn target(&self) -> Result<Target, Fault> {
        let endpoint = self.endpoint()?;
        let url = endpoint.url(&self.repository.name, &format!("blobs/sha256:{}", self.digest))?;
        let mut secrets = endpoint.headers.clone();
        let tokens = &self.repository.registries.tokens;
        if let Some(authorization) = tokens.authorization(endpoint, &pull_scope(&self.repository.name)).await {
            secrets.insert(header::AUTHORIZATION, authorization);
        }
        Ok(Target { url, secrets })
    }

    /// Gets a new token to replace the refused one.
    ///
    /// # Errors
    /// No token can be obtained.
    pub(crate) async fn renew(&self, target: &Target, challenge: Option<&str>) -> Result<(), Fault> {
        let endpoint = self.endpoint()?;
        if challenge.is_none() {
            // The refusal came from the target of a redirect. Another request to the registry leads to a new redirect.
            return Ok(());
        }
        let refused = target.secrets.get(header::AUTHORIZATION);
        let scope = pull_scope(&self.repository.name);
        self.repository.registries.tokens.renew(endpoint, &scope, refused, challenge).await
    }

    /// Switches to the next endpoint. Returns whether there is more than one.
    pub(crate) fn turn_away(&self) -> bool {
        self.turn.fetch_add(1, Relaxed);
        self.repository.endpoints.len() > 1
    }

    fn endpoint(&self) -> Result<&Endpoint, Fault> {
        let endpoints = &self.repository.endpoints;
        let turn = self.turn.load(Relaxed).checked_rem(endpoints.len());
        let endpoint = turn.and_then(|turn| endpoints.get(turn));
        endpoint.ok_or_else(|| Fault::refused("hosts.toml names no host that has blobs"))
    }
}
