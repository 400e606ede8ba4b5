//! Where the workspace and the programs beside it are.

use std::{
    env,
    path::{Path, PathBuf},
};

/// The directory of the workspace.
pub fn workspace_root() -> PathBuf {
    let manifest_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest_dir.ancestors().nth(2).expect("this crate lies two directories below the root").to_path_buf()
}

/// The directory that cargo builds into.
pub fn target_dir() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace_root().join("target"), PathBuf::from)
}

/// The program of this name in `FLOE_PEERS` or on `PATH`.
pub fn peer(program: &str) -> Option<PathBuf> {
    let folders = env::var_os("FLOE_PEERS").into_iter().chain(env::var_os("PATH"));
    let folders: Vec<PathBuf> = folders.flat_map(|list| env::split_paths(&list).collect::<Vec<_>>()).collect();
    folders.into_iter().map(|folder| folder.join(program)).find(|path| path.is_file())
}
