//! A root directory with containerd.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

/// The usual place.
const PLACE: &str = "/opt/floe-containers";

/// Enters the root: the arguments are the root, a directory with files, and one with programs.
const ENTER: &str = r#"
set -eu
mount --bind "$1" "$1"
cd "$1"
mount -t proc proc proc
mount --rbind /sys sys
mount --rbind /dev dev
mount -t tmpfs run run
mount -t tmpfs tmp tmp
mkdir run/scene run/floe run/old
mount --bind "$2" run/scene
mount --bind "$3" run/floe
pivot_root . run/old
exec chroot . sh -c 'umount -l /run/old; cd /run/scene; exec sh -eu ./script'
"#;

/// The beginning of scripts that run containerd in a [`ContainerRoot`]: writes its configuration, and defines functions that start it,
/// Floe's snapshotter and Floe's service, and that pull images. The scripts set `data` before, the directory of their data.
pub const CONTAINERD_NODE: &str = include_str!("containerd_node.sh");

/// The root directory with containerd, ctr and runc: the one that `FLOE_CONTAINERS` names, or that in the usual place.
pub fn container_root() -> Option<PathBuf> {
    let root = env::var_os("FLOE_CONTAINERS").map_or_else(|| PathBuf::from(PLACE), PathBuf::from);
    ["containerd", "ctr"].iter().all(|program| root.join("usr/bin").join(program).is_file()).then_some(root)
}

/// A root directory with containerd, ctr and runc, in which scripts run.
#[derive(Clone, Debug)]
pub struct ContainerRoot(PathBuf);

impl ContainerRoot {
    /// The root of [`container_root`], if there is one.
    pub fn new() -> Option<Self> {
        container_root().map(Self)
    }

    /// A command that runs the file `script` of `folder` in the root, in namespaces of its own: all that the script starts and mounts ends
    /// with it. The script finds `folder` as its working directory `/run/scene`, and `programs` as `/run/floe`.
    pub fn enter(&self, folder: &Path, programs: &Path) -> Command {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--pid", "--fork", "--kill-child", "--propagation", "private", "--"]);
        command.args(["sh", "-c", ENTER, "enter"]).arg(&self.0).arg(folder).arg(programs);
        command
    }
}
