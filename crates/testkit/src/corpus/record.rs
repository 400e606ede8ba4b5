//! A line of `images.jsonl`.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

/// Path, as the manifest writes it, to the fields that differ from the manifest's line: a field of null is absent there;
/// a path of null is absent from the image.
pub type Overrides = BTreeMap<String, Option<Map<String, Value>>>;

/// The format of an image.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// EROFS.
    Erofs,
    /// SquashFS 4.0.
    Squashfs,
}

impl Format {
    /// The name that `mount -t` knows.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Erofs => "erofs",
            Self::Squashfs => "squashfs",
        }
    }
}

/// An image of the corpus.
#[derive(Clone, Debug, Deserialize)]
pub struct ImageRecord {
    /// Its name, which is unique.
    pub name: String,
    /// Its format.
    #[serde(rename = "fs")]
    pub format: Format,
    /// The name of the source tree.
    pub tree: String,
    /// The tool that made it.
    pub tool: String,
    /// The options of each run of the tool.
    pub options: Vec<String>,
    /// The image.
    pub image: StoredFile,
    /// Its extra devices, in the order of the device table.
    #[serde(default)]
    pub devices: Vec<StoredFile>,
    /// The byte of the file at which the file system begins.
    #[serde(default)]
    pub offset: u64,
    /// Whether reading everything reads more than 4 GiB.
    #[serde(default)]
    pub huge: bool,
    /// The manifest's file.
    pub manifest: String,
    /// What differs from the manifest.
    #[serde(default)]
    pub overrides: Overrides,
    /// The reader that the manifest comes from: `kernel`, or a tool where the kernel cannot mount the image.
    pub truth: String,
    /// `source` where the attributes in the manifest are those of the source tree, because the kernel finds others.
    pub xattrs_from: Option<String>,
}

impl ImageRecord {
    /// Whether the kernel mounts it and finds what the manifest says, attributes aside.
    pub fn kernel_is_truth(&self) -> bool {
        self.truth == "kernel"
    }
}

/// A file of the corpus, perhaps compressed with zstd.
#[derive(Clone, Debug, Deserialize)]
pub struct StoredFile {
    /// Its path in the corpus; one that ends in `.zst` is compressed.
    pub file: String,
    /// Its size in bytes when not compressed.
    pub size: u64,
    /// The SHA-256 of its bytes when not compressed, in hex.
    pub sha256: String,
}
