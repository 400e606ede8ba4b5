//! Who reads an image back.

use std::{path::Path, process::Command};

use floe_testkit::{
    KernelMount,
    corpus::{Format, Materialised},
    manifest::{Comparison, Manifest},
    peer,
    skip::Need,
    walk::{DirectoryWalk, directory},
};

use super::{build::succeed, remove, within_tree};
use crate::complaint::{Complaint, Outcome};

/// The reference tool that extracts images.
const FSCK: &str = "fsck.erofs";

/// Who reads an image back.
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

    /// Why it cannot be had here, if so.
    pub(super) fn missing(self) -> Option<String> {
        match self {
            Self::Floe => Need::Root.missing(),
            Self::Kernel => Need::KernelErofs.missing(),
            Self::Fsck => Need::Root.missing().or_else(|| Need::Peer(FSCK).missing()),
        }
    }

    /// What the image holds, by this reader. `out` is a directory that is made and taken away.
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
                let mount = KernelMount::new(&image).map_err(Complaint::new)?;
                directory(&mount.path(), DirectoryWalk::default())?
            }
            Self::Fsck => {
                let program = peer(FSCK).ok_or_else(|| Complaint::new(format!("there is no {FSCK}")))?;
                let target = format!("--extract={}", out.display());
                succeed(Command::new(program).args([&target, "--preserve", "--xattrs", "-d1"]).arg(image))?;
                directory(out, DirectoryWalk::default())?
            }
        };
        remove(out)?;
        Ok(found)
    }

    /// What of a tree this reader gives back: the reference tool sets no times of links, and the owner after the
    /// attributes, upon which the kernel takes capabilities away.
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

    /// What does not count.
    pub(super) fn comparison(self) -> Comparison {
        Comparison { directory_shape_is_free: true, ..Comparison::default() }
    }
}
