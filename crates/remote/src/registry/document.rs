//! The JSON documents of registries: manifests and indexes.

use std::collections::BTreeMap;

use base64::{Engine, prelude::BASE64_STANDARD};
use floe_remote_cache::Digest;
use serde::{Deserialize, Serialize};

use crate::fault::Fault;

/// The media types of manifests and indexes.
pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// The media types that a request for a manifest names.
pub(crate) const ACCEPTED: &str = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json";

/// Key-value pairs with additional information.
pub(crate) type Annotations = BTreeMap<String, String>;

/// The document of a reference.
#[derive(Clone, PartialEq, Eq, Debug)]
#[expect(clippy::large_enum_variant, reason = "only one exists at a time")]
pub(crate) enum Document {
    /// One image.
    Manifest(Manifest),
    /// Images for several platforms.
    Index(Index),
}

/// One image, or another artifact.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Manifest {
    pub(crate) schema_version: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) media_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) artifact_type: Option<String>,
    pub(crate) config: Descriptor,
    pub(crate) layers: Vec<Descriptor>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) subject: Option<Descriptor>,
}

/// A list of manifests, one for each platform.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Index {
    pub(crate) schema_version: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) media_type: Option<String>,
    pub(crate) manifests: Vec<Descriptor>,
}

/// Refers to a blob or document by media type, digest and size.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    pub(crate) media_type: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) artifact_type: Option<String>,
    digest: String,
    pub(crate) size: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) platform: Option<Platform>,
    #[serde(default, skip_serializing_if = "Annotations::is_empty")]
    pub(crate) annotations: Annotations,
    /// A copy of the referenced content, in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<String>,
}

/// The platform of an image.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Platform {
    pub(crate) architecture: String,
    pub(crate) os: String,
    #[serde(rename = "os.features", default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) os_features: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Kind {
    media_type: Option<String>,
    manifests: Option<serde::de::IgnoredAny>,
}

impl Document {
    /// Parses a manifest or an index. The media type in the document takes precedence over the server's.
    ///
    /// # Errors
    /// The document is neither.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, Fault> {
        let bad = |error: serde_json::Error| Fault::refused(format!("not a manifest: {error}"));
        let kind: Kind = serde_json::from_slice(bytes).map_err(bad)?;
        let is_index = match kind.media_type.as_deref() {
            Some(media_type) => media_type.contains("index") || media_type.contains("manifest.list"),
            None => kind.manifests.is_some(),
        };
        if is_index {
            serde_json::from_slice(bytes).map(Self::Index).map_err(bad)
        } else {
            serde_json::from_slice(bytes).map(Self::Manifest).map_err(bad)
        }
    }
}

impl Manifest {
    pub(crate) fn new(config: Descriptor, layers: Vec<Descriptor>) -> Self {
        let media_type = Some(MANIFEST.to_owned());
        Self { schema_version: 2, media_type, artifact_type: None, config, layers, subject: None }
    }
}

impl Index {
    pub(crate) fn new(manifests: Vec<Descriptor>) -> Self {
        Self { schema_version: 2, media_type: Some(INDEX.to_owned()), manifests }
    }
}

impl Descriptor {
    /// Creates a descriptor.
    pub(crate) fn new(media_type: &str, digest: &Digest, size: u64) -> Self {
        Self {
            media_type: media_type.to_owned(),
            artifact_type: None,
            digest: format!("sha256:{digest}"),
            size,
            platform: None,
            annotations: Annotations::new(),
            data: None,
        }
    }

    /// Embeds a copy of the referenced content, which saves readers a request.
    pub(crate) fn embed(&mut self, content: &[u8]) {
        self.data = Some(BASE64_STANDARD.encode(content));
    }

    /// The embedded copy of the referenced content; `None` if there is none with the right digest.
    pub(crate) fn embedded(&self) -> Option<Vec<u8>> {
        let content = BASE64_STANDARD.decode(self.data.as_ref()?).ok()?;
        let expected = self.digest().ok()?;
        (Digest::of(&content) == expected).then_some(content)
    }

    /// The digest of the referenced content.
    ///
    /// # Errors
    /// It is not a SHA-256 digest.
    pub(crate) fn digest(&self) -> Result<Digest, Fault> {
        parse_digest(&self.digest)
    }
}

/// Parses a digest in a document.
///
/// # Errors
/// It is not a SHA-256 digest.
pub(crate) fn parse_digest(text: &str) -> Result<Digest, Fault> {
    text.parse().map_err(|_| Fault::refused(format!("'{}' is not a SHA-256 digest", text.escape_debug())))
}
