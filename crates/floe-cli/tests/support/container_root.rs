//! A root directory with containerd and its programs, in which scripts run.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use floe_testkit::container_root;

/// Enters the root: the arguments are the root, a directory with files of the test, and one with the program.
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

/// A root directory with containerd, ctr and runc.
pub(crate) struct ContainerRoot(PathBuf);

impl ContainerRoot {
    pub(crate) fn new() -> Self {
        Self(container_root().expect("the test needs it"))
    }

    /// Runs a script in the root, in namespaces of its own: all that it starts and mounts ends with it. It finds `folder` as its
    /// working directory, and the built program as `/run/floe/floe`.
    pub(crate) fn run(&self, folder: &Path, script: &str) -> Output {
        fs::write(folder.join("script"), script).expect("written");
        let program = Path::new(env!("CARGO_BIN_EXE_floe")).parent().expect("a directory");
        let mut command = Command::new("unshare");
        command.args([
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--propagation",
            "private",
            "--",
            "sh",
            "-c",
            ENTER,
            "enter",
        ]);
        command.arg(&self.0).arg(folder).arg(program).stdin(Stdio::null());
        super::program::run(&mut command)
    }
}
