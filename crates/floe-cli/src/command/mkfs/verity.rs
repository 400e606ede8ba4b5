//! `floe mkfs --verity`: appends the hash tree to the image, and writes its root hash to a file beside the image.

use std::{fs, io, path::Path};

use floe_mkfs::{Companion, CompleteImage};
use floe_remote_cache::{VerityOptions, append_verity, sidecar_path, sidecar_text};

use crate::fail::Fail;
use floe_image::{Shown, ShownName};

/// The maximum size of hashed blocks, in bytes; the image's own block size is used if it is smaller. The kernel mounts
/// only images with blocks that are no smaller than those of the tree.
const BLOCK_BYTES_MAX: u32 = 4096;

/// A hash tree at the end of an image.
pub(super) struct AppendedTree {
    /// Its length in bytes.
    pub(super) len: u64,
    /// The file with its root hash.
    pub(super) root_hash: Companion,
}

/// Refuses targets to which no tree can be appended, or whose root hash cannot be stored.
pub(super) fn check(image: &Path) -> Result<(), Fail> {
    if fs::metadata(image).is_ok_and(|metadata| !metadata.is_file()) {
        let image = shown(image);
        return Err(Fail::usage(format!("{image} is not a regular file: --verity appends to the image")));
    }
    let sidecar = sidecar_path(image);
    if fs::metadata(&sidecar).is_ok_and(|metadata| !metadata.is_file()) {
        let sidecar = shown(&sidecar);
        return Err(Fail::usage(format!("{sidecar} is not a regular file: --verity writes the root hash there")));
    }
    Ok(())
}

/// Appends the tree to an image for `path` that has no name yet.
pub(super) fn append(complete: &CompleteImage, path: &Path, image_block_bytes: u64) -> Result<AppendedTree, Fail> {
    let block_bytes = u32::try_from(image_block_bytes).map_or(BLOCK_BYTES_MAX, |bytes| bytes.min(BLOCK_BYTES_MAX));
    let options = VerityOptions { block_bytes, ..VerityOptions::default() };
    let append = || {
        let file = complete.file();
        let len_before = file.metadata()?.len();
        let root = append_verity(file, &options)?;
        io::Result::Ok((file.metadata()?.len().saturating_sub(len_before), root))
    };
    let (len, root) = append().map_err(|error| Fail::failed(format!("{}: {error}", shown(path))))?;
    let root_hash = Companion { path: sidecar_path(path), content: Some(sidecar_text(&root).into_bytes()) };
    Ok(AppendedTree { len, root_hash })
}

fn shown(path: &Path) -> Shown<'_> {
    path.shown()
}
