//! The file beside an image with the root of its hash tree: `layer.erofs.dmverity`.

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

/// The path of the sidecar file for the image at `path`.
pub fn sidecar_path(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".dmverity");
    name.into()
}

/// The content of the sidecar file.
pub fn sidecar_text(root: &VerityRoot) -> String {
    // There is no line break at the end, as in containerd's files.
    format!("{{\n  \"roothash\": \"{}\",\n  \"hashoffset\": {}\n}}", root.root_hash, root.hash_offset)
}

/// Parses the output of [`sidecar_text`] or of containerd.
///
/// # Errors
/// The text is not such JSON, or the hash is not a SHA-256 digest.
pub fn parse_sidecar(text: &str) -> Result<VerityRoot, BadVerity> {
    let sidecar: Sidecar = serde_json::from_str(text)
        .map_err(|_| BadVerity { rule: "the .dmverity file is no JSON object with roothash and hashoffset" })?;
    let root_hash = sidecar
        .roothash
        .parse()
        .map_err(|_| BadVerity { rule: "the root hash in the .dmverity file is no SHA-256" })?;
    Ok(VerityRoot { root_hash, hash_offset: sidecar.hashoffset })
}
