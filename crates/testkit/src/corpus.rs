//! Reference images and their manifests.
//!
//! The corpus is a directory of images made by the reference tools, next to the project. `fixtures/` is a small
//! directory of the same form inside the project, so that tests also run without the corpus.

mod corrupt;
mod materialise;
mod record;

pub use corrupt::CorruptImage;
pub use materialise::Materialised;
pub use record::{Format, ImageRecord, Overrides, StoredFile};

use std::{
    collections::HashSet,
    env, fs,
    path::{Path, PathBuf},
};

use xxhash_rust::xxh64::xxh64;

use crate::{manifest::Manifest, sample};

/// A directory of reference images.
#[derive(Clone, Debug)]
pub struct Corpus {
    root: PathBuf,
}

impl Corpus {
    /// The corpus: `FLOE_CORPUS`, or `../shared/corpus` or `../../shared/corpus` relative to the workspace.
    ///
    /// # Errors
    /// There is no corpus; the string names the searched locations.
    pub fn locate() -> Result<Self, String> {
        let holds_images = |root: &PathBuf| root.join("images.jsonl").is_file();
        if let Some(root) = env::var_os("FLOE_CORPUS").map(PathBuf::from) {
            return holds_images(&root)
                .then(|| Self { root: root.clone() })
                .ok_or(format!("FLOE_CORPUS ({}) holds no images.jsonl", root.display()));
        }
        let candidates = ["../shared/corpus", "../../shared/corpus"].map(|path| workspace_root().join(path));
        candidates.into_iter().find(holds_images).map(|root| Self { root }).ok_or(
            "there is no reference corpus (set FLOE_CORPUS, or put it at ../shared/corpus next to the workspace)"
                .into(),
        )
    }

    /// The small images of `fixtures/`, which are always present.
    pub fn fixtures() -> Self {
        Self { root: workspace_root().join("fixtures") }
    }

    /// The corpus; without one, prints a skip message and returns the fixtures.
    pub fn locate_or_fixtures() -> Self {
        Self::locate().unwrap_or_else(|reason| {
            crate::skipped::skipped(&format!("{reason}; only fixtures/ is tested"));
            Self::fixtures()
        })
    }

    /// A directory of the same form elsewhere.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The images, in the order of `images.jsonl`.
    ///
    /// # Panics
    /// `images.jsonl` cannot be read or is malformed.
    pub fn images(&self) -> Vec<ImageRecord> {
        let path = self.root.join("images.jsonl");
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let lines = text.lines().filter(|line| !line.is_empty());
        lines.map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in {line}"))).collect()
    }

    /// The images that one run reads: those of `fixtures/` and one in twenty of the others, chosen by a hash of the name.
    /// `FLOE_IMAGES` selects another twentieth by its number, or `all`; `FLOE_IMAGE` keeps those with that word in their names.
    ///
    /// # Panics
    /// As [`images`](Self::images), or `FLOE_IMAGES` is neither `all` nor a number below 20.
    pub fn sample(&self) -> Vec<ImageRecord> {
        let images = self.images().into_iter();
        if let Ok(word) = env::var("FLOE_IMAGE") {
            return images.filter(|image| image.name.contains(&word)).collect();
        }
        let Some(part) = sample::part() else { return images.collect() };
        let always: HashSet<String> = Self::fixtures().images().into_iter().map(|image| image.name).collect();
        let is_chosen = |name: &str| always.contains(name) || xxh64(name.as_bytes(), 0) % sample::PARTS == part;
        images.filter(|image| is_chosen(&image.name)).collect()
    }

    /// The image with this name.
    ///
    /// # Panics
    /// There is no such image.
    pub fn image(&self, name: &str) -> ImageRecord {
        let found = self.images().into_iter().find(|image| image.name == name);
        found.unwrap_or_else(|| panic!("{} has no image {name}", self.root.display()))
    }

    /// The bytes of a file in the directory, decompressed if its name ends in `.zst`.
    ///
    /// # Errors
    /// The file cannot be read; the string names it.
    pub fn plain_bytes(&self, file: &str) -> Result<Vec<u8>, String> {
        materialise::read_plain(&self.root.join(file)).map_err(|error| format!("{file}: {error}"))
    }

    /// The manifest of an image, with its overrides applied.
    ///
    /// # Panics
    /// The manifest cannot be read or is malformed.
    pub fn manifest(&self, image: &ImageRecord) -> Manifest {
        let bytes = self.plain_bytes(&image.manifest).unwrap_or_else(|error| panic!("{error}"));
        let text = String::from_utf8(bytes).unwrap_or_else(|error| panic!("{}: {error}", image.manifest));
        Manifest::parse(&text, &image.overrides).unwrap_or_else(|error| panic!("manifest of {}: {error}", image.name))
    }
}

/// The root directory of the workspace.
pub fn workspace_root() -> PathBuf {
    let manifest_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest_dir.ancestors().nth(2).expect("this crate lies two directories below the root").to_path_buf()
}

/// The build directory of cargo.
pub fn target_dir() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace_root().join("target"), PathBuf::from)
}
