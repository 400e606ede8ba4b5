//! Converted twins of ordinary layers: `floe convert` puts a manifest with EROFS layers beside the original one into the index, or makes it
//! refer to that, and notes in each layer what it was made of.

use std::{
    collections::{BTreeMap, HashMap},
    io,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use floe_remote::{
    EROFS_FEATURE, FORMAT_ANNOTATION, ImageReference, Network, Outage, RegistryImages, RemoteLocation, RemoteOptions,
    SOURCE_ANNOTATION, TWIN_ARTIFACT, Version,
};
use floe_sync::Mutex;
use serde_json::Value;

use crate::labels::{RemoteLayer, sha256};

/// How long the answer of a registry is used. containerd prepares one layer of an image after the other.
const KEPT: Duration = Duration::from_secs(60);

/// The maximum number of manifests of an index that are searched.
const MANIFESTS_MAX: usize = 8;

/// How converted twins of ordinary layers are found.
#[derive(Clone, Debug)]
pub struct TwinOptions {
    /// How registries are asked.
    pub remote: RemoteOptions,
    /// Whether twins that refer to a manifest are used for images that are named by a digest, too. The digest does not pin them:
    /// whoever may push to the repository may add or replace them.
    pub trusts_referrers: bool,
}

/// Finds the twins of layers.
pub(crate) struct Twins {
    options: TwinOptions,
    /// The twins that were found, with the time of the search.
    found: Mutex<HashMap<ImageManifest, (Instant, Arc<TwinUrls>)>>,
}

/// An image and the digest of its manifest.
type ImageManifest = (String, String);

/// The URLs of twins, by the digests of the original layers.
type TwinUrls = BTreeMap<String, String>;

impl Twins {
    /// Asks registries with these options, but only for a short time: without an answer, there are no twins.
    pub(crate) fn new(options: TwinOptions) -> Self {
        let remote = RemoteOptions { outage: Outage::Eio, ..options.remote };
        Self { options: TwinOptions { remote, ..options }, found: Mutex::default() }
    }

    /// The URL of the twin of a layer, if the index of the image has one, or if one refers to the manifest. The index also has the
    /// manifest of the layer, so that it is the one that the image was pulled with, or a later one with the same image.
    ///
    /// # Errors
    /// The registry does not answer, or its documents are broken.
    pub(crate) fn find(&self, layer: &RemoteLayer) -> io::Result<Option<String>> {
        let key = (layer.image.clone(), layer.manifest.clone());
        let kept = {
            let mut found = self.found.lock();
            found.retain(|_, (at, _)| at.elapsed() < KEPT);
            found.get(&key).map(|(_, twins)| Arc::clone(twins))
        };
        let twins = match kept {
            Some(twins) => twins,
            None => {
                let searched = self.search(layer);
                // A registry that does not answer is asked once for an image.
                let twins = Arc::new(searched.as_ref().map_or_else(|_| TwinUrls::new(), TwinUrls::clone));
                self.found.lock().insert(key, (Instant::now(), Arc::clone(&twins)));
                searched?;
                twins
            }
        };
        Ok(twins.get(&layer.digest).cloned())
    }

    /// Searches the index and the referrers at the same time. Twins in the index take precedence.
    fn search(&self, layer: &RemoteLayer) -> io::Result<TwinUrls> {
        let Some(reference) = reference(&layer.image) else { return Ok(TwinUrls::new()) };
        let images = Network::new(self.options.remote.clone())?.images(&reference)?;
        let may_refer = self.options.trusts_referrers || matches!(reference.version, Version::Tag(_));
        let (indexed, referring) = thread::scope(|scope| {
            let search = || referring(&images, layer);
            let other =
                may_refer.then(|| thread::Builder::new().name("floe-twins".to_owned()).spawn_scoped(scope, search));
            let indexed = indexed(&images, &reference.version, layer);
            let referring = other.map_or_else(
                || Ok(TwinUrls::new()),
                |other| other?.join().unwrap_or_else(|_| Err(io::Error::other("the search ended early"))),
            );
            (indexed, referring)
        });
        match (indexed, referring) {
            (Ok(mut twins), Ok(others)) => {
                for (source, url) in others {
                    twins.entry(source).or_insert(url);
                }
                Ok(twins)
            }
            (Ok(twins), Err(_)) | (Err(_), Ok(twins)) if !twins.is_empty() => Ok(twins),
            (Err(error), _) | (_, Err(error)) => Err(error),
        }
    }
}

/// The twins in the index.
fn indexed(images: &RegistryImages, version: &Version, layer: &RemoteLayer) -> io::Result<TwinUrls> {
    let mut twins = TwinUrls::new();
    let index = read(images, version)?;
    for digest in twin_manifests(&index, &layer.manifest) {
        let Some(version) = digest["sha256:".len()..].parse().ok().map(Version::Digest) else { continue };
        add(&mut twins, layer, digest, &read(images, &version)?);
    }
    Ok(twins)
}

/// The twins that refer to the manifest.
fn referring(images: &RegistryImages, layer: &RemoteLayer) -> io::Result<TwinUrls> {
    let mut twins = TwinUrls::new();
    let Ok(subject) = layer.manifest["sha256:".len()..].parse() else { return Ok(twins) };
    for digest in images.referrers(&subject, TWIN_ARTIFACT)? {
        let manifest = read(images, &Version::Digest(digest))?;
        if manifest["subject"]["digest"] == layer.manifest {
            add(&mut twins, layer, &format!("sha256:{digest}"), &manifest);
        }
    }
    Ok(twins)
}

/// Adds the twins in a manifest with this digest.
fn add(twins: &mut TwinUrls, layer: &RemoteLayer, digest: &str, manifest: &Value) {
    for (source, twin) in layers(manifest) {
        twins.entry(source.to_owned()).or_insert_with(|| layer.url(digest, twin));
    }
}

fn read(images: &RegistryImages, version: &Version) -> io::Result<Value> {
    Ok(serde_json::from_slice(&images.document(version)?.1)?)
}

/// The reference of an image, if it has a tag or a digest.
fn reference(image: &str) -> Option<ImageReference> {
    match format!("oci://{image}").parse::<RemoteLocation>() {
        Ok(RemoteLocation::Registry(reference)) => Some(reference),
        _ => None,
    }
}

/// The digests of the manifests of an index with EROFS layers, for the same machine as the one with this digest; none if that is not in
/// the index.
fn twin_manifests<'index>(index: &'index Value, manifest: &str) -> Vec<&'index str> {
    let entries: Vec<&Value> = index["manifests"].as_array().into_iter().flatten().collect();
    let platform = |entry: &'index Value| &entry["platform"];
    let Some(own) = entries.iter().find(|entry| entry["digest"] == manifest).map(|entry| platform(entry)) else {
        return Vec::new();
    };
    let is_twin = |entry: &&&Value| {
        let other = &entry["platform"];
        let features = other["os.features"].as_array().into_iter().flatten();
        ["os", "architecture", "variant"].iter().all(|field| own[*field] == other[*field])
            && features.into_iter().any(|feature| feature == EROFS_FEATURE)
    };
    let digests = entries.iter().filter(is_twin).filter_map(|entry| sha256(entry["digest"].as_str()?));
    digests.take(MANIFESTS_MAX).collect()
}

/// The EROFS layers of a manifest: what each was made of, and its digest.
fn layers(manifest: &Value) -> impl Iterator<Item = (&str, &str)> {
    manifest["layers"].as_array().into_iter().flatten().filter_map(|layer| {
        let annotations = &layer["annotations"];
        let is_erofs = annotations[FORMAT_ANNOTATION] == "erofs";
        let source = annotations[SOURCE_ANNOTATION].as_str().and_then(sha256).filter(|_| is_erofs)?;
        Some((source, sha256(layer["digest"].as_str()?)?))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn digest(digit: char) -> String {
        format!("sha256:{}", digit.to_string().repeat(64))
    }

    #[test]
    fn twins_are_for_the_same_machine() {
        let entry = |digit, architecture: &str, features: &[&str]| json!({ "digest": digest(digit), "platform": { "os": "linux", "architecture": architecture, "os.features": features } });
        let index = json!({ "manifests": [
            entry('1', "amd64", &[]), entry('2', "arm64", &[]), entry('3', "amd64", &["erofs"]), entry('4', "arm64", &["erofs"]),
            { "digest": "sha256:5", "platform": { "os": "linux", "architecture": "amd64", "os.features": ["erofs"] } }, {}, 7,
        ] });
        for (manifest, expected) in
            [(digest('1'), vec![digest('3')]), (digest('2'), vec![digest('4')]), (digest('6'), vec![])]
        {
            assert_eq!(twin_manifests(&index, &manifest), expected, "{manifest}");
        }
        for none in [json!({}), json!({ "manifests": 5 }), json!([])] {
            assert_eq!(twin_manifests(&none, &digest('1')), Vec::<&str>::new());
        }
    }

    #[test]
    fn twins_name_what_they_were_made_of() {
        let layer = |digit, format: &str, source: &str| json!({ "digest": digest(digit), "annotations": { FORMAT_ANNOTATION: format, SOURCE_ANNOTATION: source } });
        let manifest = json!({ "layers": [
            layer('1', "erofs", &digest('a')), layer('2', "squashfs", &digest('b')), layer('3', "erofs", "sha256:c"),
            { "digest": digest('4') }, { "annotations": { FORMAT_ANNOTATION: "erofs", SOURCE_ANNOTATION: digest('e') } },
        ] });
        assert_eq!(layers(&manifest).collect::<Vec<_>>(), [(&*digest('a'), &*digest('1'))]);
        assert_eq!(layers(&json!({ "layers": {} })).count(), 0);
    }

    #[test]
    fn references_have_versions() {
        for (image, expected) in [
            ("localhost:5000/app:v1".to_owned(), true),
            (format!("host/app@{}", digest('a')), true),
            ("a b".to_owned(), false),
            (String::new(), false),
        ] {
            assert_eq!(reference(&image).is_some(), expected, "{image}");
        }
    }
}
