//! Layers by the digests of their archives, as containerd looks for them in its `layer_content_caches`.

use std::{
    collections::HashMap,
    io,
    time::{Duration, Instant},
};

use floe_remote::{ImageOptions, ImageReference, Network, RemoteImage, Version};
use floe_remote_cache::Digest;
use floe_sync::Mutex;

/// How long the answer of the registry is used. containerd looks a layer up several times.
const KEPT: Duration = Duration::from_secs(10);

/// The ending of an entry's name.
const ENDING: &str = ".erofs";

/// The layers of a repository: the one with the diff ID `sha256:HEX` has the tag `sha256-HEX`.
pub(crate) struct Contents {
    repository: ImageReference,
    options: ImageOptions,
    found: Mutex<HashMap<Digest, (Instant, Option<Content>)>>,
}

/// A layer.
#[derive(Clone, Debug)]
pub(crate) struct Content {
    layer: ImageReference,
    pub(crate) len: u64,
}

impl Contents {
    pub(crate) fn new(repository: ImageReference, options: ImageOptions) -> Self {
        Self { repository, options, found: Mutex::default() }
    }

    /// The layer with a diff ID, if the repository has it.
    ///
    /// # Errors
    /// The registry does not answer.
    pub(crate) fn find(&self, diff_id: &Digest) -> io::Result<Option<Content>> {
        let kept = {
            let mut found = self.found.lock();
            found.retain(|_, (at, _)| at.elapsed() < KEPT);
            found.get(diff_id).map(|(_, content)| content.clone())
        };
        if let Some(content) = kept {
            return Ok(content);
        }
        let version = Version::Tag(format!("sha256-{diff_id}"));
        let image = ImageReference { version, ..self.repository.clone() };
        let network = Network::new(self.options.remote.clone())?;
        let layers = match network.images(&image).and_then(|images| images.rooted_layers(diff_id)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            layers => layers?,
        };
        let content = match &layers[..] {
            [layer] => Some(Content { layer: layer.reference.clone(), len: layer.len }),
            _ => None,
        };
        self.found.lock().insert(*diff_id, (Instant::now(), content.clone()));
        Ok(content)
    }

    /// The bytes of a layer.
    ///
    /// # Errors
    /// The registry does not answer.
    pub(crate) fn open(&self, diff_id: &Digest) -> io::Result<Option<RemoteImage>> {
        let Some(content) = self.find(diff_id)? else { return Ok(None) };
        RemoteImage::open(&content.layer.to_string(), &self.options, |_| ()).map(Some)
    }
}

/// Parses the name of a directory of entries: the first two digits of their digests.
pub(crate) fn prefix(name: &[u8]) -> Option<[u8; 2]> {
    let is_digit = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
    <[u8; 2]>::try_from(name).ok().filter(|digits| digits.iter().all(is_digit))
}

/// Parses the name of an entry in the directory of a prefix.
pub(crate) fn entry(prefix: [u8; 2], name: &[u8]) -> Option<Digest> {
    let digits = std::str::from_utf8(name).ok()?.strip_suffix(ENDING)?;
    let digest: Digest = digits.parse().ok()?;
    (digest.to_string() == digits && digits.as_bytes().starts_with(&prefix)).then_some(digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_have_the_names_of_containerd() {
        let digits = Digest::of(b"").to_string();
        let [good, other, upper] = [&*digits, &format!("0{}", &digits[1..]), &digits.to_uppercase()];
        for (directory, name, is_entry) in [
            ("e3", format!("{good}.erofs"), true),
            ("e4", format!("{good}.erofs"), false),
            ("e3", format!("{other}.erofs"), false),
            ("e3", format!("{upper}.erofs"), false),
            ("e3", format!("sha256:{good}.erofs"), false),
            ("e3", format!("{good}.erofs.dmverity"), false),
            ("e3", good.to_owned(), false),
            ("e3", ".erofs".to_owned(), false),
        ] {
            let found = prefix(directory.as_bytes()).and_then(|prefix| entry(prefix, name.as_bytes()));
            assert_eq!(found.is_some(), is_entry, "{directory}/{name}");
        }
        for name in ["", "e", "e3a", "E3", "..", "g0"] {
            assert_eq!(prefix(name.as_bytes()), None, "{name}");
        }
    }
}
