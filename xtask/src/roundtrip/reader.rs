//! The readers of images.

use std::{path::Path, process::Command};

use floe_testkit::{
    KernelMount,
    corpus::{Format, Materialised},
    manifest::{Comparison, Manifest},
    peer,
    skip::Need,
    walk::{DirectoryWalk, directory},
};

use super::{remove, succeed, within_tree};
use crate::task_error::{Outcome, TaskError};

/// The reference tool that extracts images.
const FSCK: &str = "fsck.erofs";

/// A reader of images.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Reader {
    /// `floe extract`.
    Floe,
    /// A mount by the kernel.
    Kernel,
    /// `fsck.erofs --extract`.
    Fsck,
}

impl Reader {
    /// All of them.
    pub(super) const ALL: [Self; 3] = [Self::Floe, Self::Kernel, Self::Fsck];

    /// Its name.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Floe => "floe",
            Self::Kernel => "kernel",
            Self::Fsck => FSCK,
        }
    }

    /// Why the reader is not available; `None` if it is.
    pub(super) fn missing(self) -> Option<String> {
        match self {
            Self::Floe => Need::Root.missing(),
            Self::Kernel => Need::KernelErofs.missing(),
            Self::Fsck => Need::Root.missing().or_else(|| Need::Peer(FSCK).missing()),
        }
    }

    /// The manifest of the image according to this reader. `out` is a directory that is created and removed.
    pub(super) fn read(self, floe: &Path, image: &Path, out: &Path) -> Outcome<Manifest> {
        remove(out)?;
        let found = match self {
            Self::Floe => {
                succeed(
                    Command::new(floe).args(["extract", "--strict", "--quiet", "--directory"]).arg(out).arg(image),
                )?;
                directory(out, DirectoryWalk::default())?
            }
            Self::Kernel => {
                let (path, format) = (image.to_path_buf(), Format::Erofs);
                let image = Materialised { path, format, offset: 0, devices: Vec::new() };
                let mount = KernelMount::new(&image).map_err(TaskError::new)?;
                directory(&mount.path(), DirectoryWalk::default())?
            }
            Self::Fsck => {
                let program = peer(FSCK).ok_or_else(|| TaskError::new(format!("there is no {FSCK}")))?;
                let target = format!("--extract={}", out.display());
                succeed(Command::new(program).args([&target, "--preserve", "--xattrs", "-d1"]).arg(image))?;
                directory(out, DirectoryWalk::default())?
            }
        };
        remove(out)?;
        Ok(found)
    }

    /// The part of a tree that this reader restores. The reference tool does not set the times of links, and sets the
    /// owner after the xattrs, at which the kernel drops capabilities.
    pub(super) fn visible(self, manifest: &Manifest) -> Manifest {
        let mut manifest = within_tree(manifest.clone());
        if self == Self::Fsck {
            for (_, entry) in manifest.entries_mut() {
                entry.xattrs.remove(&b"security.capability"[..]);
                if entry.file_type == 'l' {
                    entry.modified = (0, 0);
                }
            }
        }
        manifest
    }

    /// What the comparison ignores.
    pub(super) fn comparison(self) -> Comparison {
        Comparison { directory_shape_is_free: true, ..Comparison::default() }
    }
}
