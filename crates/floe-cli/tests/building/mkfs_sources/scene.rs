//! Builds an image of a folder, and mounts it.

use floe_testkit::run_bounded;
use std::fs;
use std::path::Path;
use std::path::PathBuf;
use std::process::Command;
use std::process::Output;
use std::process::Stdio;
use std::time::Duration;
use tempfile::TempDir;

/// The time limit for runs that could hang or take hours.
pub(crate) const LIMIT: Duration = Duration::from_secs(300);

pub(crate) fn folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a scratch folder");
    fs::create_dir(folder.path().join("source")).expect("made");
    folder
}

pub(crate) fn mkfs(folder: &TempDir, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
    command.args(["mkfs", "-q", "image"]).args(arguments).current_dir(folder.path()).stdin(Stdio::null());
    command
}

/// Runs it, and returns its exit code and messages.
pub(crate) fn run(folder: &TempDir, arguments: &[&str]) -> (Option<i32>, String) {
    let run = run_bounded(&mut mkfs(folder, arguments), LIMIT).expect("floe runs");
    assert!(!run.is_timed_out, "{arguments:?} does not end");
    (run.status.code(), run.stderr)
}

pub(crate) fn image(folder: &TempDir) -> PathBuf {
    folder.path().join("image")
}

/// A mount of the image by the kernel. Unmounted when dropped.
pub(crate) struct Mounted(TempDir);

impl Mounted {
    pub(crate) fn new(image: &Path) -> Self {
        let place = tempfile::tempdir().expect("a folder");
        let output = Command::new("mount").args(["-t", "erofs", "-o", "ro"]).arg(image).arg(place.path()).output();
        let output = output.expect("mount runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Self(place)
    }

    pub(crate) fn path(&self, inner: &str) -> PathBuf {
        self.0.path().join(inner)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

pub(crate) fn done(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}
