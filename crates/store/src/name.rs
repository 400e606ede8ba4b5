//! The names in the directory of a store.

use std::sync::Arc;

use base64::{Engine, prelude::BASE64_STANDARD};
use floe_remote::{ImageReference, RemoteLocation};
use floe_remote_cache::Digest;

/// The reference of an image, as Podman writes it: `registry/repository:tag` or `registry/repository@sha256:…`. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct Reference(Arc<str>);

impl Reference {
    /// Parses a name in the root of the store: a reference in base64.
    pub(crate) fn of_name(name: &[u8]) -> Option<Self> {
        let text = String::from_utf8(BASE64_STANDARD.decode(name).ok()?).ok()?;
        Self::new(&text)
    }

    /// Parses a reference.
    pub(crate) fn new(text: &str) -> Option<Self> {
        let reference = Self(text.into());
        reference.parse()?;
        Some(reference)
    }

    /// The name in the root of the store.
    pub(crate) fn name(&self) -> String {
        BASE64_STANDARD.encode(self.0.as_bytes())
    }

    /// The reference as Podman writes it.
    pub(crate) fn text(&self) -> &str {
        &self.0
    }

    /// The place in a registry.
    pub(crate) fn image(&self) -> ImageReference {
        self.parse().unwrap_or_else(|| unreachable!("it was parsed before"))
    }

    fn parse(&self) -> Option<ImageReference> {
        // These would be a query, and the choice of a layer.
        if self.0.contains(['?', '#']) {
            return None;
        }
        match format!("oci://{}", self.0).parse() {
            Ok(RemoteLocation::Registry(reference)) => Some(reference),
            _ => None,
        }
    }
}

/// Parses the name of a layer: a digest, in its only form.
pub(crate) fn layer(name: &[u8]) -> Option<Digest> {
    let text = std::str::from_utf8(name).ok()?;
    let digest: Digest = text.parse().ok()?;
    (layer_name(&digest) == text).then_some(digest)
}

/// The name of a layer.
pub(crate) fn layer_name(digest: &Digest) -> String {
    format!("sha256:{digest}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_parsed_as_podman_writes_them() {
        let digest = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        let with_digest = format!("host:5000/a/b@{digest}");
        for (text, expected) in [
            ("docker.io/library/alpine:latest", Some("oci://docker.io/library/alpine:latest")),
            ("localhost:5000/app:v1", Some("oci://localhost:5000/app:v1")),
            (&with_digest, Some(&*format!("oci://{with_digest}"))),
            ("localhost:5000/app:v1#0", None),
            ("localhost:5000/app?x", None),
            ("user:secret@host/app", None),
            ("host/../app", None),
            ("../../etc/passwd", None),
            ("/etc/passwd", None),
            ("host/App", None),
            ("app", None),
            ("", None),
            ("host/app:v1\n", None),
            ("host/app\0", None),
        ] {
            let name = BASE64_STANDARD.encode(text);
            let parsed = Reference::of_name(name.as_bytes());
            assert_eq!(parsed.as_ref().map(|parsed| parsed.image().to_string()).as_deref(), expected, "{text}");
            assert!(parsed.is_none_or(|parsed| parsed.name() == name && parsed.text() == text));
        }
        for name in [&b"."[..], b"..", b"a", b"%%%%", b"_-8=", b"\xff\xfe", b"aG9zdC9hcHA6djE", b" aG9zdC9hcHA6djE="] {
            assert_eq!(Reference::of_name(name), None, "{name:?}");
        }
    }

    #[test]
    fn layers_have_one_name() {
        let digits = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(layer(format!("sha256:{digits}").as_bytes()), Some(Digest::of(b"")));
        let (upper, long) = (format!("sha256:{}", digits.to_uppercase()), format!("sha256:{digits}0"));
        for name in [digits, &upper, &long, "sha256:", "sha512:00", "..", "", "sha256:../../x"] {
            assert_eq!(layer(name.as_bytes()), None, "{name}");
        }
        assert_eq!(layer(b"\xff"), None);
    }
}
