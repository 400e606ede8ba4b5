//! Pushes an image: its bytes, a manifest, an index, and as referrers its digest table, its hash tree and its launch bundle.

use std::{fs::File, io, sync::Arc};

use floe_image::{ByteRange, machine_architecture};
use floe_remote_cache::{Digest, VerityRoot};
use serde_json::json;

use crate::{
    ImageReference, Network, RemoteLocation, Version,
    fault::Fault,
    network::Shared,
    registry::{
        companions::Companions,
        document::{Descriptor, INDEX, Index, MANIFEST, Manifest, Platform},
        endpoint::{Endpoint, repository_of},
        manifest::{EROFS_FEATURE, EROFS_LAYER, FORMAT_ANNOTATION, SQUASHFS_LAYER},
        referrers,
        upload::{Content, Upload},
    },
};

/// The media types of objects that accompany a layer.
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const EMPTY: &str = "application/vnd.oci.empty.v1+json";

/// The format of a pushed image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PushedFormat {
    /// containerd supports its layers.
    Erofs,
    /// Only Floe supports its layers.
    Squashfs,
}

/// An image to push.
#[derive(Debug)]
pub struct ImageToPush<'a> {
    /// Its bytes.
    pub file: &'a File,
    /// Its format.
    pub format: PushedFormat,
    /// The root of the hash tree that follows it.
    pub verity: Option<VerityRoot>,
    /// The parts of it that a launch reads, in groups that are fetched one after the other. A copy of them becomes a blob of
    /// its own.
    pub launch: Vec<Vec<ByteRange>>,
}

/// The result of a push.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pushed {
    /// The location, by digest.
    pub location: String,
    /// The length of the image in bytes.
    pub len: u64,
}

/// A document before it is uploaded.
struct Made {
    descriptor: Descriptor,
    digest: Digest,
    bytes: Vec<u8>,
}

impl Network {
    /// Pushes the image in `file` to `location`, with its digest table, and with the root of the hash tree behind it,
    /// if there is one. `progress` receives the numbers of uploaded and of all bytes.
    ///
    /// # Errors
    /// `location` is not a tag in a registry, the file cannot be read, or the registry refuses an upload.
    pub fn push(
        &self,
        image: &ImageToPush<'_>,
        location: &RemoteLocation,
        progress: &dyn Fn(u64),
    ) -> io::Result<Pushed> {
        let wrong = |message: &str| io::Error::new(io::ErrorKind::InvalidInput, format!("{location}: {message}"));
        let RemoteLocation::Registry(reference) = location else {
            return Err(wrong("images are pushed to oci://registry/repository:tag"));
        };
        let Version::Tag(tag) = &reference.version else {
            return Err(wrong("push to a tag; the digest follows from the content"));
        };
        if reference.layer.is_some() {
            return Err(wrong("push an image, not a layer: remove the part after '#'"));
        }
        let companions = Companions::new(image.file, &image.launch)?;
        let shared = self.shared();
        let pushed = shared.block_on(push(shared, reference, tag, image, &companions, progress));
        pushed.map_err(|fault| fault.at(location))
    }
}

async fn push(
    shared: &Arc<Shared>,
    reference: &ImageReference,
    tag: &str,
    image: &ImageToPush<'_>,
    companions: &Companions,
    progress: &dyn Fn(u64),
) -> Result<Pushed, Fault> {
    let (digest, len) = (companions.layer_digest(), companions.layer_len());
    let endpoint = Endpoint::own(&reference.registry, shared.options.plain_http)?;
    let upload = Upload::new(shared, endpoint, repository_of(reference));
    upload.blob(digest, &Content::File { file: image.file, len }, progress).await?;
    let mut artifacts = Vec::new();
    for (companion, bytes) in companions.blobs() {
        upload.blob(&companion.digest, &Content::Bytes(&bytes), &|_| ()).await?;
        artifacts.push(companion.descriptor());
    }
    let os_features = match image.format {
        PushedFormat::Erofs => vec![EROFS_FEATURE.to_owned()],
        PushedFormat::Squashfs => Vec::new(),
    };
    let platform = Platform { architecture: machine_architecture().to_owned(), os: "linux".to_owned(), os_features };
    let config = config(&platform, digest)?;
    upload.blob(&config.digest, &Content::Bytes(&config.bytes), &|_| ()).await?;

    let manifest = made(MANIFEST, &manifest_of(config.descriptor, image, companions))?;
    upload.manifest(&format!("sha256:{}", manifest.digest), MANIFEST, &manifest.bytes).await?;
    for artifact in artifacts {
        refer(&upload, &manifest.descriptor, vec![artifact]).await?;
    }
    let mut entry = manifest.descriptor;
    entry.platform = Some(platform);
    // With the manifest inside the index, opening the image takes one request less.
    entry.embed(&manifest.bytes);
    let index = made(INDEX, &Index::new(vec![entry]))?;
    upload.manifest(tag, INDEX, &index.bytes).await?;
    let location = ImageReference { version: Version::Digest(index.digest), ..reference.clone() };
    Ok(Pushed { location: location.to_string(), len })
}

/// The configuration that container runtimes require.
fn config(platform: &Platform, layer: &Digest) -> Result<Made, Fault> {
    let mut config = json!({
        "architecture": platform.architecture,
        "os": platform.os,
        "config": {},
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{layer}")] },
    });
    if !platform.os_features.is_empty() {
        config["os.features"] = json!(platform.os_features);
    }
    made(CONFIG, &config)
}

fn manifest_of(config: Descriptor, image: &ImageToPush<'_>, companions: &Companions) -> Manifest {
    let media_type = match image.format {
        PushedFormat::Erofs => EROFS_LAYER,
        PushedFormat::Squashfs => SQUASHFS_LAYER,
    };
    let mut layer = Descriptor::new(media_type, companions.layer_digest(), companions.layer_len());
    if image.format == PushedFormat::Erofs {
        layer.annotations.insert(FORMAT_ANNOTATION.to_owned(), "erofs".to_owned());
    }
    companions.annotate(&mut layer.annotations);
    if let Some(root) = image.verity {
        layer.annotations.insert("org.erofs.dmverity.root_digest".to_owned(), format!("sha256:{}", root.root_hash));
        layer.annotations.insert("org.erofs.dmverity.hash_offset".to_owned(), root.hash_offset.to_string());
    }
    Manifest::new(config, vec![layer])
}

/// Makes artifacts of one type refer to the image, so that registries keep them, and clients find them without their digests.
pub(super) async fn refer(upload: &Upload, subject: &Descriptor, artifacts: Vec<Descriptor>) -> Result<(), Fault> {
    let Some(media_type) = artifacts.first().map(|artifact| artifact.media_type.clone()) else { return Ok(()) };
    let empty = made(EMPTY, &json!({}))?;
    upload.blob(&empty.digest, &Content::Bytes(&empty.bytes), &|_| ()).await?;
    let referrer = Manifest {
        artifact_type: Some(media_type.clone()),
        subject: Some(subject.clone()),
        ..Manifest::new(empty.descriptor, artifacts)
    };
    let bytes = made(MANIFEST, &referrer)?.bytes;
    referrers::push(upload, &subject.digest()?, &media_type, &bytes).await
}

fn made(media_type: &str, document: &impl serde::Serialize) -> Result<Made, Fault> {
    let bytes = serde_json::to_vec(document).map_err(|error| Fault::refused(error.to_string()))?;
    let digest = Digest::of(&bytes);
    Ok(Made { descriptor: Descriptor::new(media_type, &digest, bytes.len() as u64), digest, bytes })
}
