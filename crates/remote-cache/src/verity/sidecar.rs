//! The file beside an image that holds the root of its hash tree: `layer.erofs.dmverity`.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use serde::Deserialize;

use crate::{VerityRoot, verity::BadVerity};

#[derive(Deserialize)]
struct Sidecar {
    roothash: String,
    hashoffset: u64,
}

/// Where the root of the tree of the image at `path` is kept.
pub fn sidecar_path(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".dmverity");
    name.into()
}

/// What the file beside an image holds.
pub fn sidecar_text(root: &VerityRoot) -> String {
    // No line break at the end: containerd writes none.
    format!("{{\n  \"roothash\": \"{}\",\n  \"hashoffset\": {}\n}}", root.root_hash, root.hash_offset)
}

/// Reads what [`sidecar_text`] or containerd wrote.
///
/// # Errors
/// It is no such JSON, or the hash is no SHA-256.
pub fn parse_sidecar(text: &str) -> Result<VerityRoot, BadVerity> {
    let sidecar: Sidecar = serde_json::from_str(text)
        .map_err(|_| BadVerity { rule: "the .dmverity file is no JSON object with roothash and hashoffset" })?;
    let root_hash =
        sidecar.roothash.parse().map_err(|_| BadVerity { rule: "the root hash in the .dmverity file is no SHA-256" })?;
    Ok(VerityRoot { root_hash, hash_offset: sidecar.hashoffset })
}
