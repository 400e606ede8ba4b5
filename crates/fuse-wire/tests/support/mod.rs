//! A small file system over a channel, and mounts of it.
#![allow(dead_code, unused_imports, reason = "each test uses its part")]

mod sample;

use std::{
    ffi::CString,
    fs,
    os::fd::{AsRawFd, OwnedFd},
    path::Path,
};

use floe_fuse_wire::open;
use floe_testkit::skip::{Need, ready};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
pub(crate) use sample::{CONTENT_BYTES, MANY, SLOW, Sample, content};

/// Whether this machine can mount; says on stderr where it cannot.
pub(crate) fn can_mount() -> bool {
    ready(&[Need::Root, Need::Fuse])
}

/// A mount, which is unmounted when this is dropped.
pub(crate) struct TestMount {
    directory: tempfile::TempDir,
}

impl TestMount {
    /// A mount that nobody serves yet, and its descriptor.
    pub(crate) fn new() -> (Self, OwnedFd) {
        let directory = tempfile::Builder::new().prefix("fuse-wire-").tempdir().expect("a directory");
        let device = open().expect("the device");
        let data = format!("fd={},rootmode=40755,user_id=0,group_id=0,allow_other", device.as_raw_fd());
        let data = CString::new(data).expect("text");
        mount("fuse-wire", directory.path(), "fuse", MountFlags::RDONLY, data.as_c_str()).expect("a mount");
        (Self { directory }, device)
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }
}

impl Drop for TestMount {
    fn drop(&mut self) {
        let _ = unmount(self.directory.path(), UnmountFlags::DETACH);
    }
}
