//! The construction of a mutated image from a seed.

use floe_testkit::{
    corpus::Format,
    manifest::{bytes_from_hex, hex_from_bytes, sha256_hex},
};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Value, json};

use super::{erofs_structures::repair_checksum, seed::Seed};

/// The maximum growth of an image in bytes.
const GROWTH_BYTES_MAX: usize = 1 << 20;

/// The construction of a mutated image from a seed.
#[derive(Clone, Default, Debug, Serialize, Deserialize)]
pub(super) struct Recipe {
    /// The name of the seed.
    pub(super) seed: String,
    /// The changes, in order.
    pub(super) changes: Vec<Change>,
    /// Whether the superblock's checksum is updated at the end.
    pub(super) repair: bool,
}

/// One change.
#[derive(Clone, Default, Debug, Serialize, Deserialize)]
pub(super) struct Change {
    /// Its kind: "number of dirent".
    pub(super) kind: String,
    pub(super) edits: Vec<Edit>,
    /// The new length of the image.
    pub(super) len: Option<usize>,
}

/// A replacement of bytes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Edit {
    pub(super) offset: usize,
    #[serde(serialize_with = "hex", deserialize_with = "from_hex")]
    pub(super) bytes: Vec<u8>,
}

impl Recipe {
    /// The mutated image, including data before the file system.
    pub(super) fn apply(&self, seed: &Seed) -> Vec<u8> {
        let mut bytes = seed.bytes.clone();
        let len_max = bytes.len() + GROWTH_BYTES_MAX;
        for change in &self.changes {
            for edit in &change.edits {
                let end = edit.offset.saturating_add(edit.bytes.len());
                if end <= len_max {
                    bytes.resize(bytes.len().max(end), 0);
                    bytes[edit.offset..end].copy_from_slice(&edit.bytes);
                }
            }
            if let Some(len) = change.len {
                bytes.resize(len.min(len_max), 0);
            }
        }
        // A shortened image may end before its file system begins.
        if self.repair
            && seed.format == Format::Erofs
            && let Some(file_system) = bytes.get_mut(seed.offset as usize..)
        {
            repair_checksum(file_system);
        }
        bytes
    }

    /// The kinds of the changes, without duplicates.
    pub(super) fn kinds(&self) -> Vec<&str> {
        let mut kinds: Vec<&str> = self.changes.iter().map(|change| change.kind.as_str()).collect();
        kinds.sort_unstable();
        kinds.dedup();
        kinds
    }

    /// The mutated image as a line of `corrupt.jsonl`.
    pub(super) fn fixture(&self, seed: &Seed, name: &str, note: &str) -> Value {
        let bytes = self.apply(seed);
        let truncate = (bytes.len() < seed.base_bytes.len()).then_some(bytes.len());
        json!({
            "base": seed.base, "edits": differences(&seed.base_bytes, &bytes), "name": name, "note": note,
            "reference": "not tried", "sha256": sha256_hex(&bytes), "truncate": truncate,
        })
    }
}

/// The edits that turn `old` into `new`, apart from truncation. Nearby differences form one edit.
fn differences(old: &[u8], new: &[u8]) -> Vec<Edit> {
    const NEAR: usize = 8;
    let mut edits: Vec<Edit> = Vec::new();
    for (offset, byte) in new.iter().enumerate().filter(|(offset, byte)| old.get(*offset) != Some(byte)) {
        match edits.last_mut() {
            Some(last) if offset - (last.offset + last.bytes.len()) < NEAR => {
                last.bytes.extend_from_slice(&new[last.offset + last.bytes.len()..=offset]);
            }
            _ => edits.push(Edit { offset, bytes: vec![*byte] }),
        }
    }
    edits
}

fn hex<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&hex_from_bytes(bytes))
}

fn from_hex<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    let text = String::deserialize(deserializer)?;
    bytes_from_hex(&text).ok_or_else(|| serde::de::Error::custom("not hex"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutate::structures::Structures;

    #[test]
    fn an_image_may_end_before_its_file_system_begins() {
        let bytes = vec![1; 16_384];
        let seed = Seed {
            name: "seed".to_owned(),
            base: "seed".to_owned(),
            base_bytes: bytes.clone(),
            format: Format::Erofs,
            structures: Structures::new(bytes.len() - 8192),
            bytes,
            offset: 8192,
            devices: Vec::new(),
        };
        for len in [0, 7856, 8192, 8193, 16_384] {
            let changes = vec![Change { len: Some(len), ..Change::default() }];
            let recipe = Recipe { seed: seed.name.clone(), changes, repair: true };
            assert_eq!(recipe.apply(&seed).len(), len);
        }
    }
}
