//! A root directory with containerd.

use std::{env, path::PathBuf};

/// The usual place.
const PLACE: &str = "/opt/floe-containers";

/// The root directory with containerd, ctr and runc: the one that `FLOE_CONTAINERS` names, or that in the usual place.
pub fn container_root() -> Option<PathBuf> {
    let root = env::var_os("FLOE_CONTAINERS").map_or_else(|| PathBuf::from(PLACE), PathBuf::from);
    ["containerd", "ctr"].iter().all(|program| root.join("usr/bin").join(program).is_file()).then_some(root)
}
