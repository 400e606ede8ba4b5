//! A line of `images.jsonl`.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

/// Maps an escaped path to the fields that differ from the manifest's line. A null field is absent; a null path is
/// absent from the image.
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
    /// The name for `mount -t`.
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
    /// The tool that created it.
    pub tool: String,
    /// The options of each invocation of the tool.
    pub options: Vec<String>,
    /// The image.
    pub image: StoredFile,
    /// Its extra devices, in the order of the device table.
    #[serde(default)]
    pub devices: Vec<StoredFile>,
    /// The offset of the file system in the file, in bytes.
    #[serde(default)]
    pub offset: u64,
    /// Whether reading all files reads more than 4 GiB.
    #[serde(default)]
    pub huge: bool,
    /// The file name of the manifest.
    pub manifest: String,
    /// Differences from the manifest.
    #[serde(default)]
    pub overrides: Overrides,
    /// The origin of the manifest: `kernel`, or a tool if the kernel cannot mount the image.
    pub truth: String,
    /// `source` if the xattrs in the manifest are those of the source tree, because the kernel shows others.
    pub xattrs_from: Option<String>,
}

impl ImageRecord {
    /// Whether the kernel mounts the image and shows what the manifest records, apart from xattrs.
    pub fn kernel_is_truth(&self) -> bool {
        self.truth == "kernel"
    }
}

/// A file of the corpus, possibly compressed with zstd.
#[derive(Clone, Debug, Deserialize)]
pub struct StoredFile {
    /// Its path in the corpus; a path ending in `.zst` is compressed.
    pub file: String,
    /// Its uncompressed size in bytes.
    pub size: u64,
    /// The SHA-256 of its uncompressed bytes, in hex.
    pub sha256: String,
}
