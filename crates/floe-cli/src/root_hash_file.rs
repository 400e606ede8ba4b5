//! The hash tree of `floe mkfs --verity`, and the file with its root, `IMAGE.dmverity`, when an image is written or replaced.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

use floe_image::{Shown, ShownName};
use floe_mkfs::{Companion, CompleteImage};
use floe_remote_cache::{VerityOptions, append_verity, parse_sidecar, sidecar_path, sidecar_text};

use crate::fail::Fail;

/// The maximum length of such a file in bytes.
const LEN_MAX: u64 = 64 << 10;

/// The root hash files of an earlier image.
#[derive(Default)]
pub(crate) struct StaleRootHashes {
    /// The files, for removal together with the earlier image.
    pub(crate) companions: Vec<Companion>,
    /// One line for each file: whether it is removed or kept.
    pub(crate) notes: Vec<String>,
}

impl StaleRootHashes {
    /// Finds the files beside `image`, and beside the file to which it links, except `new`, which is replaced. Such a file
    /// does not belong to a new image, but `floe push` would publish it. Files with other content are kept.
    pub(crate) fn of(image: &Path, new: Option<&Path>) -> Self {
        let mut stale = Self::default();
        for path in root_hash_paths(image) {
            if new != Some(path.as_path()) && fs::symlink_metadata(&path).is_ok() {
                stale.add(path);
            }
        }
        stale
    }

    fn add(&mut self, path: PathBuf) {
        let shown = path.shown();
        if is_root_hash(&path) {
            self.notes.push(format!("{shown} was removed: it had the root hash of the previous image"));
            self.companions.push(Companion { path, content: None });
        } else {
            self.notes.push(format!("{shown} was kept: it is not a root hash file, but floe push looks for one there"));
        }
    }
}

/// The paths of the root hash files beside `image`, and beside the file to which it links.
pub(crate) fn root_hash_paths(image: &Path) -> Vec<PathBuf> {
    let is_link = fs::symlink_metadata(image).is_ok_and(|status| status.is_symlink());
    let linked = is_link.then(|| fs::canonicalize(image).ok()).flatten();
    [Some(image), linked.as_deref()].into_iter().flatten().map(sidecar_path).collect()
}

/// Whether a file is one that `floe mkfs --verity` or containerd writes.
fn is_root_hash(path: &Path) -> bool {
    let mut text = String::new();
    fs::metadata(path).is_ok_and(|status| status.is_file())
        && File::open(path).is_ok_and(|file| file.take(LEN_MAX).read_to_string(&mut text).is_ok())
        && parse_sidecar(&text).is_ok()
}

/// The maximum size of hashed blocks, in bytes; the image's own block size is used if it is smaller. The kernel mounts
/// only images with blocks that are no smaller than those of the tree.
const BLOCK_BYTES_MAX: u32 = 4096;

/// A hash tree at the end of an image.
pub(crate) struct AppendedTree {
    /// Its length in bytes.
    pub(crate) len: u64,
    /// The file with its root hash.
    pub(crate) root_hash: Companion,
}

/// Refuses targets to which no tree can be appended, or whose root hash cannot be stored.
pub(crate) fn check_verity_target(image: &Path) -> Result<(), Fail> {
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
pub(crate) fn append_verity_tree(
    complete: &CompleteImage,
    path: &Path,
    image_block_bytes: u64,
) -> Result<AppendedTree, Fail> {
    let block_bytes = u32::try_from(image_block_bytes).map_or(BLOCK_BYTES_MAX, |bytes| bytes.min(BLOCK_BYTES_MAX));
    let options = VerityOptions { block_bytes, ..VerityOptions::default() };
    let append_verity_tree = || {
        let file = complete.file();
        let len_before = file.metadata()?.len();
        let root = append_verity(file, &options)?;
        io::Result::Ok((file.metadata()?.len().saturating_sub(len_before), root))
    };
    let (len, root) = append_verity_tree().map_err(|error| Fail::failed(format!("{}: {error}", shown(path))))?;
    let root_hash = Companion { path: sidecar_path(path), content: Some(sidecar_text(&root).into_bytes()) };
    Ok(AppendedTree { len, root_hash })
}

fn shown(path: &Path) -> Shown<'_> {
    path.shown()
}
