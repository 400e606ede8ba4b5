//! Finds layers by the root of trust that their bytes are verified with.

use floe_image::machine_architecture;
use floe_remote_cache::Digest;

use crate::{
    ImageReference, LayerChoice, Version,
    fault::Fault,
    network::Shared,
    registry::{
        document::{Descriptor, Document, Index, Manifest},
        manifest::{EROFS_FEATURE, Layer},
        resolve::Repository,
    },
};

/// The maximum number of manifests of an index that are searched.
const MANIFESTS_MAX: usize = 32;

/// A layer that can be read in place, and whose bytes are verified.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RootedLayer {
    /// The root that its bytes are verified with.
    pub root: Digest,
    /// The layer in its manifest; both are named by their digests.
    pub reference: ImageReference,
    /// The digest of the layer.
    pub digest: Digest,
    /// Its length in bytes.
    pub len: u64,
}

/// Finds the layers of the image of a reference. Manifests for this machine, and of these the ones with EROFS layers, are searched
/// first; those behind the one with a layer of the root `until` are not.
///
/// # Errors
/// The registry does not answer, or the documents are broken.
pub(super) async fn find(
    repository: &Repository,
    shared: &Shared,
    reference: &ImageReference,
    until: &Digest,
) -> Result<Vec<RootedLayer>, Fault> {
    let (digest, bytes) = repository.document(shared, &reference.version).await?;
    let index = match Document::parse(&bytes)? {
        Document::Manifest(manifest) => return Ok(in_manifest(&manifest, digest, reference)),
        Document::Index(index) => index,
    };
    let mut layers = Vec::new();
    for entry in in_order(&index).into_iter().take(MANIFESTS_MAX) {
        let digest = entry.digest()?;
        let bytes = match entry.embedded() {
            Some(bytes) => bytes.into(),
            None => repository.document(shared, &Version::Digest(digest)).await?.1,
        };
        if let Document::Manifest(manifest) = Document::parse(&bytes)? {
            layers.extend(in_manifest(&manifest, digest, reference));
        }
        if layers.iter().any(|layer| layer.root == *until) {
            break;
        }
    }
    Ok(layers)
}

/// The entries of an index that are images, the likeliest first.
fn in_order(index: &Index) -> Vec<&Descriptor> {
    let rank = |entry: &&Descriptor| match &entry.platform {
        Some(platform) => {
            let is_own = platform.os == "linux" && platform.architecture == machine_architecture();
            (!is_own, !platform.os_features.iter().any(|feature| feature == EROFS_FEATURE))
        }
        None => (false, true),
    };
    let is_image = |entry: &&Descriptor| entry.platform.as_ref().is_none_or(|platform| platform.os != "unknown");
    let mut entries: Vec<&Descriptor> = index.manifests.iter().filter(is_image).collect();
    entries.sort_by_key(rank);
    entries
}

/// The layers of a manifest that have a root. Layers that are broken or archives are passed over.
fn in_manifest(manifest: &Manifest, manifest_digest: Digest, reference: &ImageReference) -> Vec<RootedLayer> {
    let layers = manifest.layers.iter().filter_map(|descriptor| {
        let digest = descriptor.digest().ok()?;
        let layer = Layer::new(descriptor, digest).ok()?;
        let root = *layer.root_hash().filter(|_| layer.must_be_pulled().is_none())?;
        let (version, choice) = (Version::Digest(manifest_digest), Some(LayerChoice::Digest(digest)));
        let reference = ImageReference { version, layer: choice, ..reference.clone() };
        Some(RootedLayer { root, reference, digest, len: layer.len })
    });
    layers.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(digit: char) -> String {
        format!("sha256:{}", digit.to_string().repeat(64))
    }

    fn found(media_type: &str, annotations: &str, root: char) -> bool {
        let text = format!(
            r#"{{"schemaVersion":2,"config":{{"mediaType":"x","digest":"{}","size":2}},"layers":[
                {{"mediaType":"{media_type}","digest":"{}","size":5000,"annotations":{{{annotations}}}}}]}}"#,
            hex('f'),
            hex('1')
        );
        let Ok(Document::Manifest(manifest)) = Document::parse(text.as_bytes()) else { panic!("a manifest") };
        let reference = ImageReference {
            registry: "host".to_owned(),
            repository: "app".to_owned(),
            version: Version::Tag("v1".to_owned()),
            layer: None,
        };
        let digest = |digit: char| hex(digit)[7..].parse::<Digest>().expect("a digest");
        let layers = in_manifest(&manifest, digest('2'), &reference);
        if let Some(layer) = layers.first() {
            assert_eq!(layer.reference.to_string(), format!("oci://host/app@{}#{}", hex('2'), hex('1')));
            assert_eq!((layer.digest, layer.len), (digest('1'), 5000));
        }
        layers.iter().any(|layer| layer.root == digest(root))
    }

    #[test]
    fn a_layer_is_found_by_the_root_that_verifies_it() {
        let erofs = "application/vnd.erofs.layer.v1";
        let table = format!(r#""dev.floe.digest-table":"{}""#, hex('a'));
        let tree = format!(r#""dev.floe.hash-tree":"{}","dev.floe.hash-tree.root":"{}""#, hex('b'), hex('c'));
        let both = format!("{table},{tree}");
        for (media_type, annotations, root, expected) in [
            (erofs, &*table, 'a', true),
            (erofs, &table, 'b', false),
            (erofs, &tree, 'c', true),
            (erofs, &tree, 'b', false),
            // The table verifies nothing if there is a tree: another image's table must not give this layer its name.
            (erofs, &both, 'a', false),
            (erofs, &both, 'c', true),
            ("application/vnd.oci.image.layer.v1.tar+gzip", &table, 'a', false),
            ("application/vnd.erofs.layer.v1+zstd", &table, 'a', false),
            (erofs, "", 'a', false),
            (erofs, r#""dev.floe.digest-table":"x""#, 'a', false),
        ] {
            assert_eq!(found(media_type, annotations, root), expected, "{media_type} {annotations} {root}");
        }
    }
}
