//! The file with the root of an image's hash tree, `IMAGE.dmverity`, when the image is replaced.

use std::{
    fs::{self, File},
    io::Read,
    path::{Path, PathBuf},
};

use floe_mkfs::Companion;
use floe_remote_cache::{parse_sidecar, sidecar_path};

use floe_image::ShownName;

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
