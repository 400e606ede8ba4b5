//! An image mounted by Floe.

use std::path::PathBuf;

use floe_fuse::{Mount, MountOptions, Mountpoint};
use floe_testkit::corpus::Materialised;
use tempfile::TempDir;

/// An image mounted by Floe; unmounted when dropped.
pub(crate) struct Served {
    // Dropped in this order: a directory that is still mounted cannot be removed.
    _mount: Mount,
    directory: TempDir,
}

impl Served {
    /// Mounts an image of the corpus.
    pub(crate) fn new(image: &Materialised) -> Self {
        let directory = tempfile::Builder::new().prefix("floe-served-").tempdir().expect("a directory");
        let reader = super::open(image).reader().clone();
        let mountpoint = Mountpoint::find(directory.path()).expect("a mountpoint");
        let mount = Mount::new(reader, mountpoint, &MountOptions::default()).expect("mounted");
        Self { _mount: mount, directory }
    }

    /// Where it is mounted.
    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().to_path_buf()
    }
}
