//! Resolves a reference to a blob: tag, manifest, index, layer, and root of trust.

use std::{io, sync::Arc};

use bytes::Bytes;
use floe_image::machine_architecture;
use floe_remote_cache::{Digest, DigestTable, Location, TableRoot, Trust};
use http::{HeaderValue, StatusCode, header};

use crate::{
    ImageReference, Outage, RemoteOptions, Version,
    fault::{Fault, FaultKind},
    http_client::Request,
    location::LayerChoice,
    network::Shared,
    origin::{Origin, Place, Places},
    registry::{
        document::{ACCEPTED, Document, INDEX, Manifest},
        endpoint::{Endpoint, pull_scope, repository_of},
        manifest::{Layer, choose_layer, choose_manifest},
    },
    retry::Retry,
};

/// The maximum size of a manifest, as in registries.
pub(super) const MANIFEST_BYTES_MAX: u64 = 4 << 20;

/// The maximum size of a list of referrers, in bytes.
pub(super) const REFERRERS_BYTES_MAX: u64 = 4 << 20;

/// The maximum number of indexes between a reference and its manifest.
const INDEXES_MAX: usize = 2;

/// A resolved layer.
pub(crate) struct ResolvedBlob {
    pub(crate) repository: Repository,
    /// Its URL, with tags resolved to digests.
    pub(crate) name: String,
    pub(crate) trust: Trust,
    pub(crate) layer: Layer,
}

/// A repository in a registry and its mirrors.
#[derive(Clone)]
pub(crate) struct Repository {
    endpoints: Vec<Endpoint>,
    name: String,
    registry: String,
}

impl ResolvedBlob {
    /// Resolves a reference to a layer.
    ///
    /// # Errors
    /// There is no such layer.
    pub(crate) async fn find(reference: &ImageReference, shared: &Arc<Shared>) -> Result<Self, Fault> {
        Retry::at_open(shared.options.outage).run(async || Self::find_once(reference, shared).await).await
    }

    async fn find_once(reference: &ImageReference, shared: &Arc<Shared>) -> Result<Self, Fault> {
        let repository = Repository::new(reference, &shared.options)?;
        let (digest, manifest) = repository.manifest(shared, &reference.version).await?;
        let layer = choose_layer(&manifest, reference.layer.as_ref())?;
        let trust = repository.trust(&layer, shared);
        let name = ImageReference {
            version: Version::Digest(digest),
            layer: Some(LayerChoice::Digest(layer.digest)),
            ..reference.clone()
        };
        Ok(Self { repository, name: name.to_string(), trust, layer })
    }
}

impl Repository {
    /// The repository of a reference, with its mirrors.
    ///
    /// # Errors
    /// A mirror, or the file that names them, cannot be used.
    pub(super) fn new(reference: &ImageReference, options: &RemoteOptions) -> Result<Self, Fault> {
        let endpoints = Endpoint::all(&reference.registry, options)?;
        Ok(Self { endpoints, name: repository_of(reference), registry: reference.registry.clone() })
    }

    /// The origin of a blob.
    ///
    /// # Errors
    /// The digest cannot be part of a URL.
    pub(crate) fn origin(&self, digest: &Digest) -> Result<Origin, Fault> {
        let scope = pull_scope(&self.name);
        let place = |endpoint: &Endpoint| {
            let url = endpoint.url(&self.name, &format!("blobs/sha256:{digest}"))?;
            Ok(Place { url, headers: endpoint.headers.clone(), space: endpoint.space(&scope) })
        };
        let places = self.endpoints.iter().filter(|endpoint| endpoint.can_pull).map(place);
        Ok(Origin::Places(Places::new(places.collect::<Result<_, Fault>>()?)))
    }

    /// The manifest of a version for this machine, and its digest.
    async fn manifest(&self, shared: &Shared, version: &Version) -> Result<(Digest, Manifest), Fault> {
        let (mut digest, mut bytes) = self.document(shared, version).await?;
        for _ in 0..=INDEXES_MAX {
            let index = match Document::parse(&bytes)? {
                Document::Manifest(manifest) => return Ok((digest, manifest)),
                Document::Index(index) => index,
            };
            let chosen = choose_manifest(&index, machine_architecture())?;
            digest = chosen.digest()?;
            bytes = match chosen.embedded() {
                Some(manifest) => manifest.into(),
                None => self.document(shared, &Version::Digest(digest)).await?.1,
            };
        }
        Err(Fault::refused(format!("more than {INDEXES_MAX} indexes within each other")))
    }

    /// Reads a manifest or an index, and verifies the digest that is returned with it.
    pub(super) async fn document(&self, shared: &Shared, version: &Version) -> Result<(Digest, Bytes), Fault> {
        let (name, expected) = match version {
            Version::Tag(tag) => (tag.clone(), None),
            Version::Digest(digest) => (format!("sha256:{digest}"), Some(digest)),
        };
        let may = |endpoint: &Endpoint| endpoint.can_pull && (expected.is_some() || endpoint.can_resolve);
        self.get(shared, &format!("manifests/{name}"), Some(ACCEPTED), MANIFEST_BYTES_MAX, expected, may).await
    }

    /// Reads the list of manifests that refer to `subject`, as an index. The registry may include other types.
    pub(super) async fn referrers(
        &self,
        shared: &Shared,
        subject: &Digest,
        artifact_type: &str,
    ) -> Result<Bytes, Fault> {
        let artifact_type: String = url::form_urlencoded::byte_serialize(artifact_type.as_bytes()).collect();
        let path = format!("referrers/sha256:{subject}?artifactType={artifact_type}");
        // Like a tag, the list may change.
        let may = |endpoint: &Endpoint| endpoint.can_pull && endpoint.can_resolve;
        Ok(self.get(shared, &path, Some(INDEX), REFERRERS_BYTES_MAX, None, may).await?.1)
    }

    /// Reads a small blob.
    pub(super) async fn small_blob(&self, shared: &Shared, digest: &Digest, bytes_max: u64) -> Result<Bytes, Fault> {
        let may = |endpoint: &Endpoint| endpoint.can_pull;
        Ok(self.get(shared, &format!("blobs/sha256:{digest}"), None, bytes_max, Some(digest), may).await?.1)
    }

    /// Reads an object from the first endpoint that has it. An object with a wrong digest counts as missing.
    async fn get(
        &self,
        shared: &Shared,
        path: &str,
        accept: Option<&'static str>,
        bytes_max: u64,
        expected: Option<&Digest>,
        may: impl Fn(&Endpoint) -> bool,
    ) -> Result<(Digest, Bytes), Fault> {
        let mut first_fault: Option<Fault> = None;
        for endpoint in self.endpoints.iter().filter(|endpoint| may(endpoint)) {
            let mut request = Request::get(endpoint.url(&self.name, path)?);
            request.headers.extend(accept.map(|types| (header::ACCEPT, HeaderValue::from_static(types))));
            request.secrets = endpoint.headers.clone();
            let got = self.get_from(shared, endpoint, request, bytes_max).await.and_then(|bytes| {
                let digest = Digest::of(&bytes);
                match expected {
                    Some(expected) if *expected != digest => {
                        Err(Fault::wrong(format!("sha256:{digest} came instead of sha256:{expected}")))
                    }
                    _ => Ok((digest, bytes)),
                }
            });
            match got {
                Ok(got) => return Ok(got),
                // A mirror may lack the object. The registry itself is asked last, and its answer decides.
                Err(fault) => {
                    let replaces = |first: &Fault| first.kind == FaultKind::Gone || fault.kind != FaultKind::Gone;
                    if first_fault.as_ref().is_none_or(replaces) {
                        first_fault = Some(fault);
                    }
                }
            }
        }
        Err(first_fault.unwrap_or_else(|| Fault::refused("no mirror in hosts.toml may be used for this")))
    }

    async fn get_from(
        &self,
        shared: &Shared,
        endpoint: &Endpoint,
        request: Request,
        bytes_max: u64,
    ) -> Result<Bytes, Fault> {
        let answer = shared.authenticator.send(&endpoint.space(&pull_scope(&self.name)), request).await?;
        match answer.response.status() {
            StatusCode::OK => shared.client.body(answer.response, bytes_max).await,
            status => Err(Fault::of_answer(status, answer.response.headers())),
        }
    }

    /// The root of trust of a layer: the hash tree behind it or beside it, or the table that the manifest names. A table that refers to the manifest is
    /// no root: the digest of the manifest does not pin the list of referrers, so the registry could choose the table.
    fn trust(&self, layer: &Layer, shared: &Arc<Shared>) -> Trust {
        if let Some(root) = layer.verity {
            return Trust::Verity(root);
        }
        if let Some((root, _)) = layer.tree {
            return Trust::Tree(root);
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
            let table = shared.block_on(repository.table(&shared, &digest, len, shared.options.outage));
            table.map_err(|fault| fault.at(format_args!("the digest table sha256:{digest} of {}", repository.name)))
        }))
    }

    /// The table of a layer of `len` bytes.
    async fn table(&self, shared: &Shared, digest: &Digest, len: u64, outage: Outage) -> Result<DigestTable, Fault> {
        let bytes_max = DigestTable::bytes_for(len);
        let table = async || {
            let bytes = self.small_blob(shared, digest, bytes_max).await?;
            Ok(DigestTable::parse_for(&bytes, digest, len)?)
        };
        Retry::new(outage).run(table).await
    }
}
