//! `floe mkfs --verity`: appends the hash tree to the image, and writes its root hash to a file beside the image.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::Path,
};

use floe_remote_cache::{VerityOptions, append_verity, sidecar_path, sidecar_text};

use crate::{fail::Fail, shown::Shown};

/// The maximum size of hashed blocks, in bytes; the image's own block size is used if it is smaller. The kernel mounts
/// only images with blocks that are no smaller than those of the tree.
const BLOCK_BYTES_MAX: u32 = 4096;

/// Refuses targets to which no tree can be appended, and removes the root hash of an earlier image.
pub(super) fn prepare(image: &Path) -> Result<(), Fail> {
    if fs::metadata(image).is_ok_and(|metadata| !metadata.is_file()) {
        let image = Shown(image.as_os_str().as_encoded_bytes());
        return Err(Fail::usage(format!("{image} is not a regular file: --verity appends to the image")));
    }
    let sidecar = sidecar_path(image);
    match fs::remove_file(&sidecar) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(&sidecar, &error)),
        _ => Ok(()),
    }
}

/// Appends the tree, and then writes its root hash: without that file, the tree is incomplete.
pub(super) fn append(image: &Path, image_block_bytes: u64) -> Result<(), Fail> {
    let block_bytes = u32::try_from(image_block_bytes).map_or(BLOCK_BYTES_MAX, |bytes| bytes.min(BLOCK_BYTES_MAX));
    let options = VerityOptions { block_bytes, ..VerityOptions::default() };
    let append = || {
        let file = File::options().read(true).write(true).open(image)?;
        let root = append_verity(&file, &options)?;
        file.sync_all().map(|()| root)
    };
    let root = append().map_err(|error| failed(image, &error))?;
    let sidecar = sidecar_path(image);
    let write = || {
        let mut file = File::create(&sidecar)?;
        file.write_all(sidecar_text(&root).as_bytes())?;
        file.sync_all()
    };
    write().map_err(|error| failed(&sidecar, &error))
}

fn failed(path: &Path, error: &io::Error) -> Fail {
    Fail::failed(format!("{}: {error}", Shown(path.as_os_str().as_encoded_bytes())))
}
