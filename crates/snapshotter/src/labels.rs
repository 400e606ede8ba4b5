//! The labels of snapshots.

use std::collections::BTreeMap;

use floe_keeper::IdMapping;

use crate::error::{Result, SnapshotError};

/// The labels of a snapshot.
pub(crate) type Labels = BTreeMap<String, String>;

/// The chain ID of the layer that is unpacked into a snapshot: the name that it will be committed under.
pub(crate) const SNAPSHOT_REF: &str = "containerd.io/snapshot.ref";
/// The label of layers that were never fetched as a whole, as other snapshotters set it.
const REMOTE: (&str, &str) = ("containerd.io/snapshot/remote", "remote snapshot");

/// The chain ID of the layer below, which containerd does not give as the parent if it unpacks layers in parallel.
const PARENT_CHAIN_ID: &str = "containerd.io/snapshot/parent-chain-id";
/// The users and groups of the machine that those of a container are, if it has a user namespace.
const USER_MAPPING: &str = "containerd.io/snapshot/uidmapping";
const GROUP_MAPPING: &str = "containerd.io/snapshot/gidmapping";

/// What containerd says about a layer, if `enable_remote_snapshot_annotations` or its counterpart of the CRI is set.
const IMAGE_REF: &str = "containerd.io/snapshot/cri.image-ref";
const MANIFEST_DIGEST: &str = "containerd.io/snapshot/cri.manifest-digest";
const LAYER_DIGEST: &str = "containerd.io/snapshot/cri.layer-digest";
/// The digests of the layer and of those above it, as many as fit into a label.
const IMAGE_LAYERS: &str = "containerd.io/snapshot/cri.image-layers";
/// The annotation of layers that `floe convert` and `floe push` store, and its value for EROFS images.
const FORMAT: &str = "containerd.io/snapshot/dev.floe.format";
const EROFS: &str = "erofs";

/// The maximum length of a label with its value, and the maximum number of labels, as in containerd.
const LABEL_BYTES_MAX: usize = 4096;
const LABELS_MAX: usize = 1024;

/// A layer in a registry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct RemoteLayer {
    /// The name of its snapshot.
    pub(crate) target: String,
    /// The reference of the image, as the user has given it.
    pub(crate) image: String,
    /// The registry and the repository.
    pub(crate) repository: String,
    /// The digests of the manifest and of the layer.
    pub(crate) manifest: String,
    pub(crate) digest: String,
    /// Whether it is an EROFS image.
    pub(crate) is_erofs: bool,
}

impl RemoteLayer {
    /// The URL of a layer of the same repository, `oci://…`, with digests.
    pub(crate) fn url(&self, manifest: &str, layer: &str) -> String {
        format!("oci://{}@{manifest}#{layer}", self.repository)
    }

    /// Its own URL.
    pub(crate) fn own_url(&self) -> String {
        self.url(&self.manifest, &self.digest)
    }
}

/// Refuses labels that containerd would refuse.
///
/// # Errors
/// There are too many, or one is too long.
pub(crate) fn check(labels: &Labels) -> Result<()> {
    if labels.len() > LABELS_MAX {
        return Err(SnapshotError::InvalidArgument(format!("more than {LABELS_MAX} labels")));
    }
    match labels.iter().find(|(name, value)| name.len() + value.len() > LABEL_BYTES_MAX) {
        Some((name, _)) => Err(SnapshotError::InvalidArgument(format!("the label {name:.64} is too long"))),
        None => Ok(()),
    }
}

/// Whether the layer that is unpacked into a snapshot is an EROFS image.
pub(crate) fn is_erofs(labels: &Labels) -> bool {
    labels.get(FORMAT).is_some_and(|format| format == EROFS)
}

/// The layer that is unpacked into a snapshot, if it is in a registry.
pub(crate) fn remote_layer(labels: &Labels) -> Option<RemoteLayer> {
    let value = |name: &str| labels.get(name).map(String::as_str);
    let (manifest, layer) = (sha256(value(MANIFEST_DIGEST)?)?, sha256(value(LAYER_DIGEST)?)?);
    let reference = value(IMAGE_REF)?;
    let name = reference.split_once('@').map_or(reference, |(name, _)| name);
    // A colon before the last slash belongs to the port of the registry.
    let tag_at = name.rfind(':').filter(|colon| name.rfind('/').is_none_or(|slash| slash < *colon));
    let repository = &name[..tag_at.unwrap_or(name.len())];
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:[]".contains(&byte);
    if !repository.contains('/') || !repository.bytes().all(is_plain) {
        return None;
    }
    Some(RemoteLayer {
        target: value(SNAPSHOT_REF)?.to_owned(),
        image: reference.to_owned(),
        repository: repository.to_owned(),
        manifest: manifest.to_owned(),
        digest: layer.to_owned(),
        is_erofs: is_erofs(labels),
    })
}

/// Whether containerd will give the parent of the layer with its commit (the capability `rebase`).
pub(crate) fn is_unpacked_in_parallel(labels: &Labels, parent: &str) -> bool {
    parent.is_empty() && labels.get(PARENT_CHAIN_ID).is_some_and(|parent| !parent.is_empty())
}

/// Which users and groups of the machine those of the container are; `None` without a user namespace.
///
/// # Errors
/// A label is wrong.
pub(crate) fn id_mapping(labels: &Labels) -> Result<Option<IdMapping>> {
    match (labels.get(USER_MAPPING), labels.get(GROUP_MAPPING)) {
        (None, None) => Ok(None),
        (Some(users), Some(groups)) => {
            IdMapping::parse(users, groups).map(Some).map_err(SnapshotError::InvalidArgument)
        }
        _ => Err(SnapshotError::InvalidArgument(format!("{USER_MAPPING} and {GROUP_MAPPING} belong together"))),
    }
}

/// The URLs of the layers above a layer.
pub(crate) fn later_layers(labels: &Labels, layer: &RemoteLayer) -> Vec<String> {
    let digests = labels.get(IMAGE_LAYERS).into_iter().flat_map(|list| list.split(',')).filter_map(sha256);
    digests.filter(|digest| *digest != layer.digest).map(|digest| layer.url(&layer.manifest, digest)).collect()
}

/// The labels of a snapshot whose layer was mounted from a registry.
pub(crate) fn of_remote(labels: &Labels) -> Labels {
    let mut labels = labels.clone();
    labels.insert(REMOTE.0.to_owned(), REMOTE.1.to_owned());
    labels
}

/// A SHA-256 digest in its usual form.
pub(crate) fn sha256(text: &str) -> Option<&str> {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let digits = text.strip_prefix("sha256:")?;
    (digits.len() == 64 && digits.bytes().all(is_digit)).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(reference: &str, digest: &str, format: &str) -> Labels {
        [
            (SNAPSHOT_REF, "sha256:chain"),
            (IMAGE_REF, reference),
            (MANIFEST_DIGEST, &format!("sha256:{}", "a".repeat(64))),
            (LAYER_DIGEST, digest),
            (FORMAT, format),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into()
    }

    #[test]
    fn layers_in_registries_are_recognised() {
        let (manifest, layer) = (format!("sha256:{}", "a".repeat(64)), format!("sha256:{}", "b".repeat(64)));
        for (reference, digest, format, expected) in [
            ("docker.io/library/app:v1", &*layer, EROFS, Some("docker.io/library/app")),
            ("localhost:5000/app", &layer, EROFS, Some("localhost:5000/app")),
            ("localhost:5000/a/b:v1", &layer, EROFS, Some("localhost:5000/a/b")),
            (&format!("host/app@{manifest}"), &layer, EROFS, Some("host/app")),
            (&format!("host/app:v1@{manifest}"), &layer, EROFS, Some("host/app")),
            ("host/app:v1", &layer, "squashfs", Some("host/app")),
            ("host/app:v1", "sha256:12", EROFS, None),
            ("host/a b:v1", &layer, EROFS, None),
            ("host/a#b:v1", &layer, EROFS, None),
            ("app", &layer, EROFS, None),
            ("", &layer, EROFS, None),
        ] {
            let found = remote_layer(&labels(reference, digest, format));
            let expected = expected.map(|repository| format!("oci://{repository}@{manifest}#{layer}"));
            let is_erofs = found.as_ref().is_some_and(|layer| layer.is_erofs);
            assert_eq!(is_erofs, expected.is_some() && format == EROFS, "{reference} {format}");
            assert_eq!(found.map(|layer| layer.own_url()), expected, "{reference} {format}");
        }
        for name in [SNAPSHOT_REF, IMAGE_REF, MANIFEST_DIGEST, LAYER_DIGEST] {
            let mut labels = labels("host/app:v1", &layer, EROFS);
            labels.remove(name);
            assert_eq!(remote_layer(&labels), None, "{name}");
        }
    }

    #[test]
    fn mappings_of_ids_are_complete() {
        for (users, groups, expected) in [
            (None, None, Ok(false)),
            (Some("0:100000:65536"), Some("0:100000:65536"), Ok(true)),
            (Some("0:100000:65536"), None, Err(())),
            (None, Some("0:100000:65536"), Err(())),
            (Some("0:100000"), Some("0:100000:65536"), Err(())),
        ] {
            let labels = [(USER_MAPPING, users), (GROUP_MAPPING, groups)];
            let labels = labels.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())));
            let found = id_mapping(&labels.collect()).map(|mapping| mapping.is_some());
            assert_eq!(found.map_err(drop), expected, "{users:?} {groups:?}");
        }
    }

    #[test]
    fn layers_above_a_layer_are_found() {
        let digest = |digit: char| format!("sha256:{}", digit.to_string().repeat(64));
        let mut labels = labels("host/app:v1", &digest('b'), EROFS);
        let layer = remote_layer(&labels).expect("it can be mounted");
        assert_eq!(later_layers(&labels, &layer), Vec::<String>::new());
        labels.insert(IMAGE_LAYERS.to_owned(), format!("{},{},sha256:1,{}", digest('b'), digest('c'), digest('d')));
        let url = |digit| format!("oci://host/app@{}#{}", digest('a'), digest(digit));
        assert_eq!(later_layers(&labels, &layer), [url('c'), url('d')]);
    }

    #[test]
    fn labels_have_limits() {
        let long = Labels::from([("a".to_owned(), "b".repeat(LABEL_BYTES_MAX))]);
        let many: Labels = (0..=LABELS_MAX).map(|number| (number.to_string(), String::new())).collect();
        assert!(check(&long).is_err() && check(&many).is_err());
        assert!(check(&labels("a", "b", "c")).is_ok());
    }
}
