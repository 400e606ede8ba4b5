//! The labels of snapshots.

use std::collections::BTreeMap;

use crate::error::{Result, SnapshotError};

/// The labels of a snapshot.
pub(crate) type Labels = BTreeMap<String, String>;

/// The chain ID of the layer that is unpacked into a snapshot: the name that it will be committed under.
pub(crate) const SNAPSHOT_REF: &str = "containerd.io/snapshot.ref";
/// The label of layers that were never fetched as a whole, as other snapshotters set it.
const REMOTE: (&str, &str) = ("containerd.io/snapshot/remote", "remote snapshot");

/// What containerd says about a layer, if `enable_remote_snapshot_annotations` or its counterpart of the CRI is set.
const IMAGE_REF: &str = "containerd.io/snapshot/cri.image-ref";
const MANIFEST_DIGEST: &str = "containerd.io/snapshot/cri.manifest-digest";
const LAYER_DIGEST: &str = "containerd.io/snapshot/cri.layer-digest";
/// The annotation of layers that `floe convert` and `floe push` store, and its value for EROFS images.
const FORMAT: &str = "containerd.io/snapshot/dev.floe.format";
const EROFS: &str = "erofs";

/// The maximum length of a label with its value, and the maximum number of labels, as in containerd.
const LABEL_BYTES_MAX: usize = 4096;
const LABELS_MAX: usize = 1024;

/// A layer that can be mounted without fetching it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct RemoteLayer {
    /// The name of its snapshot.
    pub(crate) target: String,
    /// Its URL, `oci://…`, with digests.
    pub(crate) url: String,
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

/// The layer to mount for a snapshot, if it is in a registry and can be read in place.
pub(crate) fn remote_layer(labels: &Labels) -> Option<RemoteLayer> {
    let value = |name: &str| labels.get(name).map(String::as_str);
    if !is_erofs(labels) {
        return None;
    }
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
    let url = format!("oci://{repository}@{manifest}#{layer}");
    Some(RemoteLayer { target: value(SNAPSHOT_REF)?.to_owned(), url })
}

/// The labels of a snapshot whose layer was mounted from a registry.
pub(crate) fn of_remote(labels: &Labels) -> Labels {
    let mut labels = labels.clone();
    labels.insert(REMOTE.0.to_owned(), REMOTE.1.to_owned());
    labels
}

/// A SHA-256 digest in its usual form.
fn sha256(text: &str) -> Option<&str> {
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
            ("host/app:v1", &layer, "squashfs", None),
            ("host/app:v1", "sha256:12", EROFS, None),
            ("host/a b:v1", &layer, EROFS, None),
            ("host/a#b:v1", &layer, EROFS, None),
            ("app", &layer, EROFS, None),
            ("", &layer, EROFS, None),
        ] {
            let found = remote_layer(&labels(reference, digest, format));
            let expected = expected.map(|repository| format!("oci://{repository}@{manifest}#{layer}"));
            assert_eq!(found.map(|layer| layer.url), expected, "{reference} {format}");
        }
        for name in [SNAPSHOT_REF, IMAGE_REF, MANIFEST_DIGEST, LAYER_DIGEST, FORMAT] {
            let mut labels = labels("host/app:v1", &layer, EROFS);
            labels.remove(name);
            assert_eq!(remote_layer(&labels), None, "{name}");
        }
    }

    #[test]
    fn labels_have_limits() {
        let long = Labels::from([("a".to_owned(), "b".repeat(LABEL_BYTES_MAX))]);
        let many: Labels = (0..=LABELS_MAX).map(|number| (number.to_string(), String::new())).collect();
        assert!(check(&long).is_err() && check(&many).is_err());
        assert!(check(&labels("a", "b", "c")).is_ok());
    }
}
