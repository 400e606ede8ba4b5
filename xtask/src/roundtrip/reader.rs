//! The readers of a round trip.

use std::{path::Path, process::Command};

use floe_testkit::{
    KernelMount,
    corpus::{Format, Materialised},
    manifest::{Comparison, Manifest},
    peer,
    skip::Need,
    walk::{DirectoryWalk, directory},
};

use super::{build::Build, remove, succeed, within_tree};
use crate::{
    bench::Session,
    task_error::{Outcome, TaskError},
};

/// The reference tools.
const FSCK: &str = "fsck.erofs";
const UNSQUASHFS: &str = "unsquashfs";
const SQUASHFUSE: &str = "squashfuse_ll";

/// A reader of images.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Reader {
    /// `floe extract`.
    Floe,
    /// `floe mount`.
    FloeMount,
    /// A mount by the kernel.
    Kernel,
    /// `fsck.erofs --extract`.
    Fsck,
    /// `unsquashfs`.
    Unsquashfs,
    /// `squashfuse_ll`.
    Squashfuse,
}

/// The readers of a format that are here, of those wanted; all without a name.
pub(super) fn readers(wanted: &[String], format: Format) -> Outcome<Vec<Reader>> {
    if let Some(unknown) = wanted.iter().find(|name| Reader::ALL.iter().all(|reader| reader.name() != **name)) {
        let names = Reader::ALL.map(Reader::name).join(", ");
        return Err(TaskError::new(format!("unknown reader {unknown}: choose among {names}")));
    }
    let wanted = |reader: &Reader| wanted.is_empty() || wanted.iter().any(|name| name == reader.name());
    let mut here = Vec::new();
    for reader in Reader::ALL.into_iter().filter(|reader| reader.knows(format)).filter(wanted) {
        match reader.missing(format) {
            None => here.push(reader),
            Some(reason) => println!("skipped: {}: {reason}", reader.name()),
        }
    }
    Ok(here)
}

impl Reader {
    /// All of them.
    const ALL: [Self; 6] = [Self::Floe, Self::FloeMount, Self::Kernel, Self::Fsck, Self::Unsquashfs, Self::Squashfuse];

    /// Its name.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Floe => "floe",
            Self::FloeMount => "floe-mount",
            Self::Kernel => "kernel",
            Self::Fsck => FSCK,
            Self::Unsquashfs => UNSQUASHFS,
            Self::Squashfuse => SQUASHFUSE,
        }
    }

    /// Whether it reads this format.
    fn knows(self, format: Format) -> bool {
        match self {
            Self::Floe | Self::FloeMount | Self::Kernel => true,
            Self::Fsck => format == Format::Erofs,
            Self::Unsquashfs | Self::Squashfuse => format == Format::Squashfs,
        }
    }

    /// Whether it can read an image of this tree: Linux and squashfuse have no lzma, and squashfuse refuses to give empty
    /// attributes.
    pub(super) fn reads(self, build: &Build, tree: &Manifest) -> bool {
        let has_empty = || tree.entries().any(|(_, entry)| entry.xattrs.values().any(Vec::is_empty));
        match self {
            Self::Kernel => !build.is_lzma_squashfs(),
            Self::Squashfuse => !build.is_lzma_squashfs() && !has_empty(),
            _ => true,
        }
    }

    /// Why the reader is not available; `None` if it is.
    fn missing(self, format: Format) -> Option<String> {
        let kernel = if format == Format::Erofs { Need::KernelErofs } else { Need::KernelSquashfs };
        let needs = match self {
            Self::Floe => &[Need::Root][..],
            Self::FloeMount => &[Need::Root, Need::Fuse],
            Self::Kernel => &[kernel],
            Self::Fsck => &[Need::Root, Need::Peer(FSCK)],
            Self::Unsquashfs => &[Need::Root, Need::Peer(UNSQUASHFS)],
            Self::Squashfuse => &[Need::Root, Need::Fuse, Need::Peer(SQUASHFUSE)],
        };
        needs.iter().find_map(|need| need.missing())
    }

    /// The manifest of the image according to this reader. `out` is a directory that is created and removed.
    pub(super) fn read(self, floe: &Path, image: &Path, format: Format, out: &Path) -> Outcome<Manifest> {
        remove(out)?;
        let program = |name: &str| peer(name).ok_or_else(|| TaskError::new(format!("there is no {name}")));
        let found = match self {
            Self::Floe => {
                succeed(
                    Command::new(floe).args(["extract", "--strict", "--quiet", "--directory"]).arg(out).arg(image),
                )?;
                directory(out, DirectoryWalk::default())?
            }
            Self::FloeMount => mounted(Command::new(floe).arg("mount").arg(image), self.name())?,
            Self::Squashfuse => mounted(Command::new(program(SQUASHFUSE)?).arg("-f").arg(image), self.name())?,
            Self::Kernel => {
                let image = Materialised::single(image, format);
                let mount = KernelMount::new(&image).map_err(TaskError::new)?;
                directory(&mount.path(), DirectoryWalk::default())?
            }
            Self::Fsck => {
                let target = format!("--extract={}", out.display());
                succeed(Command::new(program(FSCK)?).args([&target, "--preserve", "--xattrs", "-d1"]).arg(image))?;
                directory(out, DirectoryWalk::default())?
            }
            Self::Unsquashfs => {
                let mut command = Command::new(program(UNSQUASHFS)?);
                succeed(command.args(["-quiet", "-no-progress", "-dest"]).arg(out).arg(image))?;
                directory(out, DirectoryWalk::default())?
            }
        };
        remove(out)?;
        Ok(found)
    }

    /// The part of a tree that this reader restores. SquashFS has whole seconds from 1970 to 2106, and no access control
    /// lists. fsck.erofs does not set the times of links, and sets the owner after the xattrs, at which the kernel drops
    /// capabilities.
    pub(super) fn visible(self, manifest: &Manifest, format: Format) -> Manifest {
        let mut manifest = within_tree(manifest.clone());
        for (_, entry) in manifest.entries_mut() {
            if format == Format::Squashfs {
                entry.modified = (entry.modified.0.clamp(0, i64::from(u32::MAX)), 0);
                entry.xattrs.retain(|name, _| !name.starts_with(b"system."));
            }
            if self == Self::Fsck {
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

/// What a server shows. Its command lacks only the directory.
fn mounted(command: &mut Command, name: &str) -> Outcome<Manifest> {
    let session = Session::by_any(command, name)?;
    Ok(directory(&session.path(), DirectoryWalk::default())?)
}
