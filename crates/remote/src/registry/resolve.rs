//! Resolves a reference to a blob: tag, manifest, index, layer, and root of trust.

use std::{io, sync::Arc};

use bytes::Bytes;
use floe_remote_cache::{Digest, DigestTable, Location, TableRoot, Trust};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};

use crate::{
    ImageReference, Outage, Version,
    fault::{Fault, FaultKind},
    http_client::{Answer, Request},
    location::LayerChoice,
    network::Shared,
    object::table_for,
    patience::Patience,
    range_reply::refusal,
    registry::{
        BlobOrigin, Registries,
        document::{ACCEPTED, Document, Manifest, machine},
        endpoint::{Endpoint, pull_scope, repository_of},
        manifest::{Layer, choose_layer, choose_manifest},
    },
};

/// The maximum size of a manifest, as in registries.
const MANIFEST_BYTES_MAX: u64 = 4 << 20;

/// The maximum number of indexes between a reference and its manifest.
const INDEXES_MAX: usize = 2;

/// A resolved layer.
pub(crate) struct ResolvedBlob {
    pub(crate) origin: BlobOrigin,
    /// Its URL, with tags resolved to digests.
    pub(crate) name: String,
    pub(crate) len: u64,
    pub(crate) trust: Trust,
    pub(crate) layer: Layer,
}

/// A repository at one of its endpoints.
#[derive(Clone)]
pub(crate) struct Repository {
    pub(crate) registries: Registries,
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) name: String,
    registry: String,
}

impl Registries {
    /// Resolves a reference to a layer.
    ///
    /// # Errors
    /// There is no such layer.
    pub(crate) async fn resolve(
        &self,
        reference: &ImageReference,
        shared: &Arc<Shared>,
    ) -> Result<ResolvedBlob, Fault> {
        let mut patience = Patience::at_open(shared.options.outage);
        loop {
            let fault = match self.resolve_once(reference, shared).await {
                Ok(blob) => return Ok(blob),
                Err(fault) => fault,
            };
            patience.after(fault).await?;
        }
    }

    async fn resolve_once(&self, reference: &ImageReference, shared: &Arc<Shared>) -> Result<ResolvedBlob, Fault> {
        let repository = self.repository(reference)?;
        let (digest, manifest) = repository.manifest(&reference.version).await?;
        let layer = choose_layer(&manifest, reference.layer.as_ref())?;
        let trust = repository.trust(&layer, shared);
        let name = ImageReference {
            version: Version::Digest(digest),
            layer: Some(LayerChoice::Digest(layer.digest)),
            ..reference.clone()
        };
        let len = layer.len;
        let origin = BlobOrigin::new(repository, layer.digest);
        Ok(ResolvedBlob { origin, name: name.to_string(), len, trust, layer })
    }

    /// The repository of a reference, with its mirrors.
    ///
    /// # Errors
    /// The file that names the mirrors cannot be used.
    pub(crate) fn repository(&self, reference: &ImageReference) -> Result<Repository, Fault> {
        let endpoints = Endpoint::all(&reference.registry, self.plain_http)?;
        let (name, registry) = (repository_of(reference), reference.registry.clone());
        Ok(Repository { registries: self.clone(), endpoints, name, registry })
    }
}

impl Repository {
    /// The manifest of a version for this machine, and its digest.
    async fn manifest(&self, version: &Version) -> Result<(Digest, Manifest), Fault> {
        let (mut digest, mut bytes) = self.document(version).await?;
        for _ in 0..=INDEXES_MAX {
            let index = match Document::parse(&bytes)? {
                Document::Manifest(manifest) => return Ok((digest, manifest)),
                Document::Index(index) => index,
            };
            let chosen = choose_manifest(&index, machine())?;
            digest = chosen.digest()?;
            bytes = match chosen.embedded() {
                Some(manifest) => manifest.into(),
                None => self.document(&Version::Digest(digest)).await?.1,
            };
        }
        Err(Fault::refused(format!("more than {INDEXES_MAX} indexes within each other")))
    }

    /// Reads a manifest or an index, and verifies the digest that is returned with it.
    pub(crate) async fn document(&self, version: &Version) -> Result<(Digest, Bytes), Fault> {
        let name = match version {
            Version::Tag(tag) => tag.clone(),
            Version::Digest(digest) => format!("sha256:{digest}"),
        };
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, HeaderValue::from_static(ACCEPTED));
        let is_tag = matches!(version, Version::Tag(_));
        let may = |endpoint: &Endpoint| endpoint.can_pull && (!is_tag || endpoint.can_resolve);
        let expected = match version {
            Version::Tag(_) => None,
            Version::Digest(digest) => Some(*digest),
        };
        let (found, bytes) =
            self.get(&format!("manifests/{name}"), &headers, MANIFEST_BYTES_MAX, expected, may).await?;
        Ok((found, bytes))
    }

    /// Reads a small blob.
    pub(crate) async fn blob(&self, digest: &Digest, bytes_max: u64) -> Result<Bytes, Fault> {
        let path = format!("blobs/sha256:{digest}");
        let may = |endpoint: &Endpoint| endpoint.can_pull;
        self.get(&path, &HeaderMap::new(), bytes_max, Some(*digest), may).await.map(|(_, bytes)| bytes)
    }

    /// Reads an object from the first endpoint that has it. An object with a wrong digest counts as missing.
    async fn get(
        &self,
        path: &str,
        headers: &HeaderMap,
        bytes_max: u64,
        expected: Option<Digest>,
        may: impl Fn(&Endpoint) -> bool,
    ) -> Result<(Digest, Bytes), Fault> {
        let mut first_fault: Option<Fault> = None;
        for endpoint in self.endpoints.iter().filter(|endpoint| may(endpoint)) {
            let got = self.get_from(endpoint, path, headers, bytes_max).await.and_then(|bytes| {
                let digest = Digest::of(&bytes);
                match expected {
                    Some(expected) if expected != digest => {
                        Err(Fault::wrong(format!("sha256:{digest} came instead of sha256:{expected}")))
                    }
                    _ => Ok((digest, bytes)),
                }
            });
            match got {
                Ok(got) => return Ok(got),
                // A mirror may lack the object. The registry itself is asked last, and its answer decides.
                Err(fault) if first_fault.as_ref().is_none_or(|first| first.kind == FaultKind::Gone) => {
                    first_fault = Some(fault);
                }
                Err(fault) if !matches!(fault.kind, FaultKind::Gone) => first_fault = Some(fault),
                Err(_) => {}
            }
        }
        Err(first_fault.unwrap_or_else(|| Fault::refused("hosts.toml names no host for this")))
    }

    async fn get_from(
        &self,
        endpoint: &Endpoint,
        path: &str,
        headers: &HeaderMap,
        bytes_max: u64,
    ) -> Result<Bytes, Fault> {
        let url = endpoint.url(&self.name, path)?;
        let request = || Request {
            method: Method::GET,
            url: url.clone(),
            headers: headers.clone(),
            secrets: endpoint.headers.clone(),
            body: None,
        };
        let answer = self.registries.send(endpoint, &pull_scope(&self.name), request).await?;
        let status = answer.response.status();
        if status != StatusCode::OK {
            return Err(refusal(status, answer.response.headers()));
        }
        self.registries.client.body(answer.response, bytes_max).await
    }

    /// The root of trust of a layer: the hash tree or the table that the manifest names. A table that refers to the manifest is
    /// no root: the digest of the manifest does not pin the list of referrers, so the registry could choose the table.
    fn trust(&self, layer: &Layer, shared: &Arc<Shared>) -> Trust {
        if let Some(root) = layer.verity {
            return Trust::Verity(root);
        }
        let Some(digest) = layer.table else {
            let url = format!("oci://{}/{}@sha256:{}", self.registry, self.name, layer.digest);
            return Trust::Location(Location { url, etag: layer.digest.to_string() });
        };
        let (repository, len) = (self.clone(), layer.len);
        // A weak reference: the caller that requests the table keeps the network alive.
        let shared = Arc::downgrade(shared);
        Trust::Table(TableRoot::new(digest, move || {
            let shared = shared.upgrade().ok_or(io::ErrorKind::Interrupted)?;
            let table = shared.block_on(repository.table(&digest, len, shared.options.outage));
            table.map_err(|fault| fault.at(format_args!("the digest table sha256:{digest} of {}", repository.name)))
        }))
    }

    /// The table of a layer of `len` bytes.
    async fn table(&self, digest: &Digest, len: u64, outage: Outage) -> Result<DigestTable, Fault> {
        let mut patience = Patience::new(outage);
        loop {
            let table = self.blob(digest, DigestTable::bytes_for(len)).await;
            match table.and_then(|bytes| table_for(&bytes, digest, len)) {
                Ok(table) => return Ok(table),
                Err(fault) => drop(patience.after(fault).await?),
            }
        }
    }
}

/// The annotation of a digest table with the digest of its layer.
pub(crate) const SUBJECT_ANNOTATION: &str = "dev.floe.digest-table.layer";

impl Registries {
    /// Sends a request. Repeats it once with another token if the first one was refused.
    ///
    /// # Errors
    /// There is no answer, or no token.
    pub(crate) async fn send(
        &self,
        endpoint: &Endpoint,
        scope: &str,
        request: impl Fn() -> Request,
    ) -> Result<Answer, Fault> {
        for is_last in [false, true] {
            let authorization = self.tokens.authorization(endpoint, scope).await;
            let mut request = request();
            if let Some(authorization) = &authorization {
                request.secrets.insert(header::AUTHORIZATION, authorization.clone());
            }
            let home = request.url.origin();
            let answer = self.client.send(request).await?;
            let status = answer.response.status();
            if is_last || status != StatusCode::UNAUTHORIZED || answer.url.origin() != home {
                return Ok(answer);
            }
            let FaultKind::Unauthorized { challenge } = refusal(status, answer.response.headers()).kind else {
                return Ok(answer);
            };
            self.tokens.renew(endpoint, scope, authorization.as_ref(), challenge.as_deref()).await?;
        }
        Err(Fault::closed())
    }
}
