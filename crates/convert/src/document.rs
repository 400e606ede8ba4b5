//! The JSON documents of images: descriptors, manifests, indexes and configurations. Fields without a meaning here are kept.

use std::collections::BTreeMap;

use floe::remote::{EROFS_FEATURE, EROFS_LAYER};
use floe_remote_cache::Digest;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::{
    error::{Error, Result},
    settings::Settings,
};

/// The media types of what conversions write.
pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub(crate) const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
pub(crate) const TAR_LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// The maximum size of a manifest or an index, as in registries, and of a configuration, in bytes.
pub(crate) const DOCUMENT_BYTES_MAX: u64 = 4 << 20;
/// The maximum number of manifests in an index, and of layers in a manifest.
const ENTRIES_MAX: usize = 1024;

/// Refers to a blob or document by media type, digest and size.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    pub(crate) media_type: String,
    digest: String,
    pub(crate) size: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) platform: Option<Platform>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) annotations: BTreeMap<String, String>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// The platform of an image.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Platform {
    pub(crate) architecture: String,
    pub(crate) os: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) variant: Option<String>,
    #[serde(rename = "os.features", default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) os_features: Vec<String>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// One image.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Manifest {
    schema_version: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    media_type: Option<String>,
    pub(crate) config: Descriptor,
    pub(crate) layers: Vec<Descriptor>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// A list of manifests.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Index {
    schema_version: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    media_type: Option<String>,
    pub(crate) manifests: Vec<Descriptor>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// A manifest or an index.
#[derive(Clone, PartialEq, Debug)]
#[expect(clippy::large_enum_variant, reason = "only a few exist at a time")]
pub(crate) enum Document {
    Manifest(Manifest),
    Index(Index),
}

impl Document {
    /// Parses a manifest or an index.
    ///
    /// # Errors
    /// It is neither, or is too long.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self> {
        let bad = |error: serde_json::Error| Error::failed(format!("not a manifest: {error}"));
        let value: Value = serde_json::from_slice(bytes).map_err(bad)?;
        let document = if value.get("manifests").is_some() {
            Self::Index(serde_json::from_value(value).map_err(bad)?)
        } else {
            Self::Manifest(serde_json::from_value(value).map_err(bad)?)
        };
        let len = match &document {
            Self::Manifest(manifest) => manifest.layers.len(),
            Self::Index(index) => index.manifests.len(),
        };
        if len > ENTRIES_MAX {
            return Err(Error::failed(format!("a manifest has {len} entries, more than {ENTRIES_MAX}")));
        }
        Ok(document)
    }
}

impl Manifest {
    pub(crate) fn new(config: Descriptor, layers: Vec<Descriptor>) -> Self {
        Self { schema_version: 2, media_type: Some(MANIFEST.to_owned()), config, layers, rest: Map::new() }
    }

    /// The same manifest with another configuration and other layers, in the form of OCI.
    pub(crate) fn with(&self, config: Descriptor, layers: Vec<Descriptor>) -> Self {
        Self { rest: self.rest.clone(), ..Self::new(config, layers) }
    }

    /// The same manifest, as a referrer of another one.
    pub(crate) fn referring_to(mut self, subject: &Descriptor, artifact_type: &str) -> Self {
        let Descriptor { media_type, digest, size, .. } = subject;
        self.rest.insert("artifactType".to_owned(), json!(artifact_type));
        self.rest.insert("subject".to_owned(), json!({ "mediaType": media_type, "digest": digest, "size": size }));
        self
    }
}

impl Index {
    pub(crate) fn new(manifests: Vec<Descriptor>) -> Self {
        Self { schema_version: 2, media_type: Some(INDEX.to_owned()), manifests, rest: Map::new() }
    }

    /// The same index with other manifests, in the form of OCI.
    pub(crate) fn with(&self, manifests: Vec<Descriptor>) -> Self {
        Self { rest: self.rest.clone(), ..Self::new(manifests) }
    }
}

impl Descriptor {
    pub(crate) fn new(media_type: &str, digest: &Digest, size: u64) -> Self {
        let (digest, rest) = (format!("sha256:{digest}"), Map::new());
        Self { media_type: media_type.to_owned(), digest, size, platform: None, annotations: BTreeMap::new(), rest }
    }

    /// A descriptor of these bytes.
    pub(crate) fn of(media_type: &str, bytes: &[u8]) -> Self {
        Self::new(media_type, &Digest::of(bytes), bytes.len() as u64)
    }

    /// The digest of the referenced content.
    ///
    /// # Errors
    /// It is not a SHA-256 digest.
    pub(crate) fn digest(&self) -> Result<Digest> {
        let parsed = self.digest.strip_prefix("sha256:").and_then(|digits| digits.parse().ok());
        parsed.ok_or_else(|| Error::failed(format!("'{}' is not a SHA-256 digest", self.digest.escape_debug())))
    }

    /// Whether the referenced layer is an EROFS image.
    pub(crate) fn is_erofs(&self) -> bool {
        self.media_type.starts_with(EROFS_LAYER) || self.media_type.ends_with(".erofs")
    }

    /// Whether the referenced layer is a tar archive, possibly compressed.
    pub(crate) fn is_tar(&self) -> bool {
        ["tar", "tar+gzip", "tar.gzip", "tar+zstd"].iter().any(|suffix| self.media_type.ends_with(suffix))
    }

    /// Whether the referenced document is an index.
    pub(crate) fn is_index(&self) -> bool {
        self.media_type.contains("index") || self.media_type.contains("manifest.list")
    }
}

impl Platform {
    /// The platform that a configuration names.
    pub(crate) fn of_config(config: &Value) -> Option<Self> {
        let text = |name: &str| config.get(name)?.as_str().map(str::to_owned);
        let (variant, rest) = (text("variant"), Map::new());
        Some(Self { architecture: text("architecture")?, os: text("os")?, variant, os_features: Vec::new(), rest })
    }

    /// Whether images for it have EROFS layers.
    pub(crate) fn has_erofs(&self) -> bool {
        self.os_features.iter().any(|feature| feature == EROFS_FEATURE)
    }

    /// The same platform for images with EROFS layers.
    pub(crate) fn with_erofs(&self) -> Self {
        let mut platform = self.clone();
        if !platform.has_erofs() {
            platform.os_features.push(EROFS_FEATURE.to_owned());
        }
        platform
    }

    /// Whether both are for the same machine, whatever the layers are.
    pub(crate) fn is_same_machine(&self, other: &Self) -> bool {
        (&self.os, &self.architecture, &self.variant) == (&other.os, &other.architecture, &other.variant)
    }

    /// `os/architecture`, possibly with `/variant`.
    pub(crate) fn text(&self) -> String {
        let variant = self.variant.as_ref().map(|variant| format!("/{variant}")).unwrap_or_default();
        format!("{}/{}{variant}", self.os, self.architecture)
    }
}

/// The configuration of an image with EROFS layers. Their diff IDs are the digests of the layers.
///
/// # Errors
/// The configuration is not an object.
pub(crate) fn converted_config(config: &Value, diff_ids: &[String], settings: &Settings) -> Result<Value> {
    let mut config = config.clone();
    let fields = config.as_object_mut().ok_or_else(|| Error::failed("the configuration is not an object"))?;
    fields.insert("rootfs".to_owned(), json!({ "type": "layers", "diff_ids": diff_ids }));
    if !settings.for_containerd_2_1 {
        let features = fields.entry("os.features").or_insert_with(|| json!([]));
        if let Some(features) = features.as_array_mut()
            && !features.iter().any(|feature| feature == EROFS_FEATURE)
        {
            features.push(json!(EROFS_FEATURE));
        }
    }
    if settings.is_merged
        && let Some(history) = fields.get_mut("history").and_then(Value::as_array_mut)
    {
        for step in history.iter_mut().filter_map(Value::as_object_mut) {
            step.insert("empty_layer".to_owned(), json!(true));
        }
        history.push(json!({ "created_by": "floe convert --merged" }));
    }
    Ok(config)
}

/// The diff ID of a layer of a configuration.
///
/// # Errors
/// The configuration has none.
pub(crate) fn diff_id(config: &Value, place: usize) -> Result<String> {
    let diff_id = config.pointer("/rootfs/diff_ids").and_then(|diff_ids| diff_ids.get(place)?.as_str());
    diff_id.map(str::to_owned).ok_or_else(|| Error::failed("the configuration has too few diff IDs"))
}

/// The bytes of a document.
///
/// # Errors
/// It cannot be represented.
pub(crate) fn to_bytes(document: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(document).map_err(|error| Error::failed(error.to_string()))
}
