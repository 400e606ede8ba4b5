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
        let (mirror, endpoint) = self.endpoint()?;
        let url = endpoint.url(&self.repository.name, &format!("blobs/sha256:{}", self.digest))?;
        let mut secrets = endpoint.headers.clone();
        let tokens = &self.repository.registries.tokens;
        if let Some(authorization) = tokens.authorization(endpoint, &pull_scope(&self.repository.name)).await {
            secrets.insert(header::AUTHORIZATION, authorization);
        }
        Ok(Target { url, secrets, mirror })
    }

    /// Gets a new token to replace the refused one.
    ///
    /// # Errors
    /// No token can be obtained.
    pub(crate) async fn renew(&self, target: &Target, challenge: Option<&str>) -> Result<(), Fault> {
        let endpoint = self.endpoints().get(target.mirror).ok_or_else(no_endpoint)?;
        if challenge.is_none() {
            // The refusal came from the target of a redirect. Another request to the registry leads to a new redirect.
            return Ok(());
        }
        let refused = target.secrets.get(header::AUTHORIZATION);
        let scope = pull_scope(&self.repository.name);
        self.repository.registries.tokens.renew(endpoint, &scope, refused, challenge).await
    }

    /// The number of endpoints.
    pub(crate) fn mirrors(&self) -> usize {
        self.endpoints().len()
    }

    /// Switches to the endpoint after `mirror` if that is still in use; `None` stands for the one in use. Returns whether there
    /// is more than one.
    pub(crate) fn turn_away(&self, mirror: Option<usize>) -> bool {
        let count = self.mirrors();
        let turned = |turn: usize| {
            let is_in_use = mirror.is_none_or(|mirror| mirror == turn);
            if is_in_use { (turn + 1).checked_rem(count) } else { None }
        };
        let _ = self.turn.fetch_update(Relaxed, Relaxed, turned);
        count > 1
    }

    fn endpoints(&self) -> &[Endpoint] {
        &self.repository.endpoints
    }

    /// The endpoint in use, with its index.
    fn endpoint(&self) -> Result<(usize, &Endpoint), Fault> {
        let turn = self.turn.load(Relaxed);
        self.endpoints().get(turn).map(|endpoint| (turn, endpoint)).ok_or_else(no_endpoint)
    }
}

fn no_endpoint() -> Fault {
    Fault::refused("hosts.toml names no host that has blobs")
}
