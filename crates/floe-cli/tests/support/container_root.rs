//! A root directory with containerd and its programs, in which scripts run.

use std::{
    fs,
    path::Path,
    process::{Output, Stdio},
};

/// A root directory with containerd, ctr and runc.
pub(crate) struct ContainerRoot(floe_testkit::ContainerRoot);

impl ContainerRoot {
    pub(crate) fn new() -> Self {
        Self(floe_testkit::ContainerRoot::new().expect("the test needs it"))
    }

    /// Runs a script in the root, in namespaces of its own: all that it starts and mounts ends with it. It finds `folder` as its
    /// working directory, and the built program as `/run/floe/floe`.
    pub(crate) fn run(&self, folder: &Path, script: &str) -> Output {
        fs::write(folder.join("script"), script).expect("written");
        let programs = Path::new(env!("CARGO_BIN_EXE_floe")).parent().expect("a directory");
        super::program::run(self.0.enter(folder, programs).stdin(Stdio::null()))
    }
}
