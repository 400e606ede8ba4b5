//! The tests' requirements on the machine: the right to mount, and the reference extractor.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use floe_testkit::{
    Versions, peer,
    skip::{Need, ready},
};

/// A kernel mount of an image, unmounted when dropped.
pub(crate) struct KernelMount {
    directory: tempfile::TempDir,
}

impl KernelMount {
    /// Mounts an image, with `device` as its extra device.
    pub(crate) fn new(image: &Path, device: Option<&Path>) -> Result<Self, String> {
        let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
        let mut options = String::from("ro");
        if let Some(device) = device {
            options.push_str(",device=");
            options.push_str(&device.display().to_string());
        }
        let output = Command::new("mount")
            .args(["-t", "erofs", "-o", &options])
            .arg(image)
            .arg(directory.path())
            .output()
            .map_err(|error| error.to_string())?;
        if output.status.success() {
            Ok(Self { directory })
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }
}

impl Drop for KernelMount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.directory.path()).status();
    }
}

/// Whether images can be mounted here; prints a skip message if not.
pub(crate) fn can_mount() -> bool {
    ready(&[Need::Root, Need::KernelErofs])
}

/// The extractor of erofs-utils, if it supports all features of the test images; prints a skip message if not.
pub(crate) fn fsck() -> Option<PathBuf> {
    ready(&[Need::PeerOf("fsck.erofs", Versions::Since("1.9"))]).then(|| peer("fsck.erofs")).flatten()
}
