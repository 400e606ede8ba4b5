//! Corrupt images, stored as edits of valid ones.

use std::{fs, io, path::PathBuf};

use serde::Deserialize;

use super::{Corpus, Format, ImageRecord, materialise};
use crate::manifest::{bytes_from_hex, sha256_hex};

/// A corrupt image: a valid one with edits.
#[derive(Clone, Debug, Deserialize)]
pub struct CorruptImage {
    /// Its name, which is unique.
    pub name: String,
    /// The file name of the valid image, without `.zst`.
    pub base: String,
    /// The fault.
    pub note: String,
    /// The SHA-256 of the result, in hex.
    pub sha256: String,
    /// The behaviour of the reference tool, which may be wrong.
    pub reference: String,
    edits: Vec<Edit>,
    truncate: Option<usize>,
}

#[derive(Clone, Debug, Deserialize)]
struct Edit {
    offset: usize,
    bytes: String,
}

impl CorruptImage {
    /// The format of the image.
    pub fn format(&self) -> Format {
        if self.base.ends_with(".sqfs") { Format::Squashfs } else { Format::Erofs }
    }
}

impl Corpus {
    /// All corrupt images by name: the files in `corrupt/`, or the lines of `corrupt.jsonl`.
    ///
    /// # Panics
    /// The descriptions cannot be read, or one is malformed.
    pub fn corrupt_images(&self) -> Vec<CorruptImage> {
        let texts = if self.root.join("corrupt.jsonl").exists() {
            let lines = fs::read_to_string(self.root.join("corrupt.jsonl"));
            lines.map(|lines| lines.lines().map(str::to_owned).collect())
        } else {
            fs::read_dir(self.root.join("corrupt"))
                .and_then(|files| files.map(|file| fs::read_to_string(file?.path())).collect::<io::Result<Vec<_>>>())
        };
        let texts = texts.unwrap_or_else(|error| panic!("corrupted images of {}: {error}", self.root.display()));
        let parse = |text: &String| serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
        let mut images: Vec<CorruptImage> = texts.iter().map(parse).collect();
        images.sort_by(|left, right| left.name.cmp(&right.name));
        images
    }

    /// The valid image from which a corrupt one is made.
    ///
    /// # Panics
    /// There is no such image.
    pub fn base_of(&self, corrupt: &CorruptImage) -> ImageRecord {
        let is_base = |image: &ImageRecord| {
            let file = image.image.file.trim_end_matches(".zst");
            file.rsplit('/').next() == Some(&corrupt.base)
        };
        let found = self.images().into_iter().find(is_base);
        found.unwrap_or_else(|| panic!("{} has no base {}", self.root.display(), corrupt.base))
    }

    /// The bytes of a corrupt image.
    ///
    /// # Panics
    /// The result of the edits does not match the recorded digest.
    pub fn corrupt_bytes(&self, corrupt: &CorruptImage) -> Vec<u8> {
        let mut bytes = self.bytes(&self.base_of(corrupt).image);
        for edit in &corrupt.edits {
            let replacement = bytes_from_hex(&edit.bytes).unwrap_or_else(|| panic!("hex in {}", corrupt.name));
            bytes[edit.offset..edit.offset + replacement.len()].copy_from_slice(&replacement);
        }
        bytes.truncate(corrupt.truncate.unwrap_or(usize::MAX));
        assert_eq!(sha256_hex(&bytes), corrupt.sha256, "{} does not match the digest in its description", corrupt.name);
        bytes
    }

    /// A corrupt image as a file under `target/`.
    ///
    /// # Panics
    /// As for [`Corpus::corrupt_bytes`].
    pub fn materialise_corrupt(&self, corrupt: &CorruptImage) -> PathBuf {
        materialise::keep(&corrupt.sha256, || self.corrupt_bytes(corrupt))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check_rows;

    #[test]
    fn every_edit_gives_the_recorded_image() {
        let corpus = Corpus::locate_or_fixtures();
        let images = corpus.corrupt_images();
        assert!(images.len() >= 268, "{}", images.len());
        check_rows(
            &images,
            |image| image.name.clone(),
            |image| {
                corpus.corrupt_bytes(image);
                Vec::new()
            },
        );
    }
}
