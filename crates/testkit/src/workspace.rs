//! Locations of the workspace.

use std::{
    env,
    path::{Path, PathBuf},
};

/// The root directory of the workspace.
pub fn workspace_root() -> PathBuf {
    let manifest_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest_dir.ancestors().nth(2).expect("this crate lies two directories below the root").to_path_buf()
}

/// The build directory of cargo.
pub fn target_dir() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace_root().join("target"), PathBuf::from)
}
