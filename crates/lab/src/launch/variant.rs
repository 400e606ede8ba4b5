//! A variant: an image with a reader and options.

use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::error::ErrorContext;
use crate::sched::NamePattern;
use crate::{Error, Result};
use floe_image::ShownName;

/// A reader with options, and its name in tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variant {
    /// Its name.
    pub name: String,
    /// The image, or a directory that needs no mount.
    pub image: PathBuf,
    /// The reader.
    pub reader: Reader,
    /// Mount options, as after `-o`; may be empty.
    pub options: String,
}

/// The program that reads an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// Floe.
    Floe,
    /// The kernel's own EROFS or SquashFS.
    Kernel,
    /// The userspace reader of erofs-utils.
    Erofsfuse,
    /// The reader of the squashfuse project.
    Squashfuse,
    /// None: the image is a directory.
    Directory,
}

/// The format of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageKind {
    /// EROFS.
    Erofs,
    /// SquashFS.
    Squashfs,
}

/// The threads that decompress; their scheduling latency counts for the variant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decompressors {
    /// The threads of the reading process with such a name.
    Threads(NamePattern),
    /// All threads of the reading process.
    Process,
    /// Work items of kernel queues with such a name.
    Workqueue(NamePattern),
    /// The reading thread itself; it wakes no other thread.
    Caller,
}

/// The programs to run, by name on PATH or by path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Programs {
    /// Floe's own.
    pub floe: PathBuf,
    /// The reader of erofs-utils.
    pub erofsfuse: PathBuf,
    /// The reader of the squashfuse project.
    pub squashfuse: PathBuf,
}

impl Default for Programs {
    fn default() -> Self {
        let floe = std::env::current_exe().unwrap_or_else(|_| "floe".into());
        Self { floe, erofsfuse: "erofsfuse".into(), squashfuse: "squashfuse_ll".into() }
    }
}

impl Programs {
    /// Whether Floe is this very program, and so supports all requests.
    pub(crate) fn is_own_floe(&self) -> bool {
        std::env::current_exe().is_ok_and(|own| own == self.floe)
    }

    /// Parses `--peer NAME=PATH` and replaces a program.
    pub fn set(&mut self, peer: &str) -> Result<()> {
        let (name, path) = peer.split_once('=').ok_or_else(|| Error::new(format!("peer {peer:?}: use NAME=PATH")))?;
        match name {
            "floe" => self.floe = path.into(),
            "erofsfuse" => self.erofsfuse = path.into(),
            "squashfuse" | "squashfuse_ll" => self.squashfuse = path.into(),
            _ => return Err(Error::new(format!("peer {name:?}: use floe, erofsfuse or squashfuse_ll"))),
        }
        Ok(())
    }
}

impl Variant {
    /// Parses `[NAME=]READER[:OPTIONS][@IMAGE]`; the default image is `image`.
    ///
    /// Readers are floe, kernel, erofsfuse, squashfuse_ll and directory. An `=` ends a name only if it precedes the
    /// reader.
    pub fn parse(text: &str, image: &Path) -> Result<Self> {
        let (head, image) = match text.rsplit_once('@') {
            Some((head, image)) => (head, PathBuf::from(image)),
            None => (text, image.to_owned()),
        };
        let (before_options, options) = head.split_once(':').unwrap_or((head, ""));
        let (name, reader) = match before_options.split_once('=') {
            Some((name, reader)) => (Some(name), reader),
            None => (None, before_options),
        };
        let reader = match reader {
            "floe" => Reader::Floe,
            "kernel" => Reader::Kernel,
            "erofsfuse" => Reader::Erofsfuse,
            "squashfuse" | "squashfuse_ll" => Reader::Squashfuse,
            "directory" => Reader::Directory,
            _ => {
                let readers = "floe, kernel, erofsfuse, squashfuse_ll or directory";
                return Err(Error::new(format!("variant {text:?}: the reader must be {readers}")));
            }
        };
        let name = name.filter(|name| !name.is_empty()).unwrap_or(text).to_owned();
        Ok(Self { name, image, reader, options: options.to_owned() })
    }

    /// The threads whose scheduling latency counts as that of decompression.
    pub(crate) fn decompressors(&self, kind: Option<ImageKind>) -> Decompressors {
        let has = |wanted| self.options.split(',').any(|option| option == wanted);
        let (is_inline, always_hops) = (has("workers=inline"), has("sync-decompress=never"));
        match (self.reader, kind) {
            // By default, session threads decompress cheap blocks themselves.
            (Reader::Floe, _) if !is_inline && always_hops => Decompressors::Threads(NamePattern::new("floe-dec/*")),
            (Reader::Floe, _) => Decompressors::Process,
            (Reader::Kernel, Some(ImageKind::Erofs)) => Decompressors::Workqueue(NamePattern::new("erofs_worker")),
            (Reader::Erofsfuse | Reader::Squashfuse, _) => Decompressors::Process,
            (Reader::Kernel | Reader::Directory, _) => Decompressors::Caller,
        }
    }
}

impl ImageKind {
    /// Recognises an image by its magic number.
    pub fn of(image: &Path) -> Result<Self> {
        let file = File::open(image).context(|| format!("cannot open {}", image.shown()))?;
        let mut erofs = [0; 4];
        let mut squashfs = [0; 4];
        let _ = file.read_exact_at(&mut squashfs, 0);
        let _ = file.read_exact_at(&mut erofs, 1024);
        if u32::from_le_bytes(erofs) == 0xe0f5_e1e2 {
            Ok(Self::Erofs)
        } else if &squashfs == b"hsqs" {
            Ok(Self::Squashfs)
        } else {
            Err(Error::new(format!("{} is neither EROFS nor SquashFS", image.shown())))
        }
    }

    /// The kernel's name of the format.
    pub(crate) fn kernel_name(self) -> &'static str {
        match self {
            Self::Erofs => "erofs",
            Self::Squashfs => "squashfs",
        }
    }
}

impl fmt::Display for Decompressors {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Threads(pattern) => write!(out, "threads {pattern}"),
            Self::Process => out.write_str("all threads of the reader's process"),
            Self::Workqueue(pattern) => write!(out, "kernel work items of {pattern}"),
            Self::Caller => out.write_str("none: the reading thread decompresses"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variants_are_read() {
        let rows = [
            ("floe", Some(("floe", Reader::Floe, "", "img"))),
            (
                "floe:workers=shared,priority=normal",
                Some(("floe:workers=shared,priority=normal", Reader::Floe, "workers=shared,priority=normal", "img")),
            ),
            ("fifo=floe:priority=fifo", Some(("fifo", Reader::Floe, "priority=fifo", "img"))),
            ("kernel", Some(("kernel", Reader::Kernel, "", "img"))),
            ("16k=kernel@b.erofs", Some(("16k", Reader::Kernel, "", "b.erofs"))),
            ("plain=directory@/usr", Some(("plain", Reader::Directory, "", "/usr"))),
            ("squashfuse", Some(("squashfuse", Reader::Squashfuse, "", "img"))),
            ("ntfs", None),
            ("", None),
        ];
        for (text, expected) in rows {
            let variant = Variant::parse(text, Path::new("img")).ok();
            let found =
                variant.as_ref().map(|v| (v.name.as_str(), v.reader, v.options.as_str(), v.image.to_str().unwrap()));
            assert_eq!(found, expected, "{text}");
        }
    }

    #[test]
    fn decompressors_follow_the_reader() {
        let check = |text, kind, expected: &str| {
            let variant = Variant::parse(text, Path::new("img")).unwrap();
            assert_eq!(variant.decompressors(Some(kind)).to_string(), expected, "{text}");
        };
        check("floe", ImageKind::Squashfs, "all threads of the reader's process");
        check("floe:cache=1M,sync-decompress=never", ImageKind::Erofs, "threads floe-dec/*");
        check("floe:workers=inline,sync-decompress=never", ImageKind::Erofs, "all threads of the reader's process");
        check("kernel", ImageKind::Erofs, "kernel work items of erofs_worker");
        check("kernel", ImageKind::Squashfs, "none: the reading thread decompresses");
        check("erofsfuse", ImageKind::Erofs, "all threads of the reader's process");
    }

    #[test]
    fn peers_are_set_by_name_and_path() {
        let mut programs = Programs::default();
        programs.set("erofsfuse=/opt/bin/erofsfuse").unwrap();
        assert_eq!(programs.erofsfuse, PathBuf::from("/opt/bin/erofsfuse"));
        assert!(programs.set("tar=/bin/tar").is_err() && programs.set("floe").is_err());
    }
}
