//! The state of a layer in use, in a file.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use floe_image::ShownName;
use floe_remote::{ImageReference, RemoteLocation, RootedLayer};
use floe_remote_cache::Digest;
use serde::{Deserialize, Serialize};

use crate::name::Reference;

/// The version of the format.
const VERSION: u32 = 1;

/// The name of the file, and its maximum size in bytes.
const FILE: &str = "record.json";
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A layer in use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Record {
    /// The layer in its manifest, by digests.
    pub(crate) layer: ImageReference,
    /// The digest of the layer.
    pub(crate) digest: Digest,
    /// Its length in bytes.
    pub(crate) len: u64,
    /// How many layers of a storage use it, by image.
    pub(crate) uses: BTreeMap<String, u64>,
}

#[derive(Serialize, Deserialize)]
struct Stored {
    version: u32,
    url: String,
    digest: String,
    len: u64,
    uses: BTreeMap<String, u64>,
}

impl Record {
    /// A record of a layer that was found and is not used yet.
    pub(crate) fn new(layer: &RootedLayer) -> Self {
        let RootedLayer { reference, digest, len, .. } = layer;
        Self { layer: reference.clone(), digest: *digest, len: *len, uses: BTreeMap::new() }
    }

    /// Whether something uses the layer.
    pub(crate) fn is_used(&self) -> bool {
        self.uses.values().any(|count| *count > 0)
    }

    /// Notes a use for an image.
    pub(crate) fn acquire(&mut self, image: &Reference) {
        let count = self.uses.entry(image.text().to_owned()).or_default();
        *count = count.saturating_add(1);
    }

    /// Notes the end of a use.
    pub(crate) fn release(&mut self, image: &Reference) {
        if let Some(count) = self.uses.get_mut(image.text()) {
            *count = count.saturating_sub(1);
        }
        self.uses.retain(|_, count| *count > 0);
    }

    /// Reads the record in the directory of a layer.
    ///
    /// # Errors
    /// It is missing or damaged.
    pub(crate) fn load(directory: &Path) -> io::Result<Self> {
        let path = directory.join(FILE);
        let failed = |problem: &dyn std::fmt::Display| io::Error::other(format!("{}: {problem}", path.shown()));
        let metadata = fs::symlink_metadata(&path).map_err(|error| failed(&error))?;
        if !metadata.is_file() || metadata.len() > FILE_BYTES_MAX {
            return Err(failed(&"not a record"));
        }
        let bytes = fs::read(&path).map_err(|error| failed(&error))?;
        let Stored { version, url, digest, len, uses } =
            serde_json::from_slice(&bytes).map_err(|error| failed(&error))?;
        if version != VERSION {
            return Err(failed(&format_args!("its version is {version}, not {VERSION}")));
        }
        let Ok(RemoteLocation::Registry(layer)) = url.parse() else { return Err(failed(&"it has no layer")) };
        let digest = digest.parse().map_err(|error| failed(&error))?;
        Ok(Self { layer, digest, len, uses })
    }

    /// Writes the record into the directory of a layer.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn store(&self, directory: &Path) -> io::Result<()> {
        let (url, digest, uses) = (self.layer.to_string(), self.digest.to_string(), self.uses.clone());
        let stored = Stored { version: VERSION, url, digest, len: self.len, uses };
        let file = tempfile::NamedTempFile::new_in(directory)?;
        serde_json::to_writer(&file, &stored)?;
        file.persist(path(directory)).map_err(|error| error.error)?;
        Ok(())
    }
}

/// The file in the directory of a layer.
fn path(directory: &Path) -> PathBuf {
    directory.join(FILE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        let digest = Digest::of(b"layer");
        let url = format!("oci://host/app@sha256:{}#sha256:{digest}", Digest::of(b"manifest"));
        let Ok(RemoteLocation::Registry(layer)) = url.parse() else { panic!("a reference") };
        Record { layer, digest, len: 4096, uses: BTreeMap::new() }
    }

    #[test]
    fn uses_are_counted_and_stored() {
        let folder = tempfile::tempdir().expect("a folder");
        let [one, two] = ["host/app:v1", "host/app:v2"].map(|text| Reference::new(text).expect("a reference"));
        let mut record = record();
        for image in [&one, &one, &two] {
            record.acquire(image);
        }
        record.store(folder.path()).expect("stored");
        let mut loaded = Record::load(folder.path()).expect("a record");
        assert_eq!(loaded, record);
        for (image, is_used) in [(&one, true), (&one, true), (&one, true), (&two, false), (&two, false)] {
            loaded.release(image);
            assert_eq!(loaded.is_used(), is_used);
        }
    }

    #[test]
    fn damaged_records_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(Record::load(folder.path()).is_err(), "there is none");
        record().store(folder.path()).expect("stored");
        let text = fs::read_to_string(path(folder.path())).expect("text");
        for (from, to) in [("\"version\":1", "\"version\":2"), ("oci://", "https://"), ("{", "["), ("4096", "-1")] {
            fs::write(path(folder.path()), text.replace(from, to)).expect("written");
            let error = Record::load(folder.path()).expect_err(to).to_string();
            assert!(error.contains("record.json") && error.lines().count() == 1, "{error}");
        }
    }
}
