//! The images of a round trip.

use std::{
    fmt, fs,
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, Stdio},
};

use floe_testkit::{corpus::Format, manifest::Manifest};

use super::succeed;
use crate::task_error::{During, Outcome, TaskError};

/// The default options for EROFS.
const EROFS_MATRIX: [&str; 16] = [
    "",
    "--extended-inodes",
    "--chunk 4k",
    "--chunk 1m --dedupe",
    "from-tar",
    "--compress lz4",
    "--compress lz4 --lz4-window 16k",
    "--compress lz4 --extended-inodes --inline-tails",
    "--compress lz4hc,9",
    "--compress lz4hc,9 --lz4-window 16k --pcluster 64k",
    "--compress lz4hc,9 --pcluster 64k --inline-tails --fragments tails --dedupe",
    "from-tar --compress lz4hc,9 --pcluster 64k --inline-tails --fragments tails --dedupe",
    "--compress zstd,3 --pcluster 64k --inline-tails --fragments tails",
    "--compress deflate,6 --pcluster 64k --inline-tails",
    "--compress lzma,6 --pcluster 64k",
    "--compress lzma,6 --pcluster 1m --fragments all --dedupe",
];

/// The compressors of SquashFS. The default options for it are all of them with all block sizes, with and without fragments,
/// from the tree and from an archive.
const COMPRESSORS: [&str; 6] = ["gzip", "xz", "lzma", "lzo", "lz4", "zstd"];
/// The block sizes of SquashFS.
const BLOCK_SIZES: [&str; 9] = ["4K", "8K", "16K", "32K", "64K", "128K", "256K", "512K", "1M"];

/// The prefix that passes the tree as a tar archive.
const FROM_TAR: &str = "from-tar";

/// An image to be made: with which options, and of what.
pub(super) struct Build {
    options: Vec<String>,
    from_tar: bool,
    format: Format,
}

/// The default images of a format.
pub(super) fn matrix(format: Format) -> Vec<Build> {
    if format == Format::Erofs {
        return EROFS_MATRIX.iter().map(|options| Build::parse(options, format)).collect();
    }
    let mut builds = Vec::new();
    for block_size in BLOCK_SIZES {
        for source in ["", FROM_TAR] {
            for fragments in ["", "-no-fragments"] {
                for compressor in COMPRESSORS {
                    let options = format!("{source} -comp {compressor} -b {block_size} {fragments}");
                    builds.push(Build::parse(&options, format));
                }
            }
        }
    }
    builds
}

impl Build {
    /// Parses options with the optional prefix `from-tar`.
    pub(super) fn parse(text: &str, format: Format) -> Self {
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        let from_tar = words.first().is_some_and(|word| word == FROM_TAR);
        Self { options: words.into_iter().skip(usize::from(from_tar)).collect(), from_tar, format }
    }

    /// Whether the image is compressed by a codec that Linux and its readers do not have.
    pub(super) fn is_lzma_squashfs(&self) -> bool {
        self.format == Format::Squashfs && self.options.iter().any(|word| word == "lzma")
    }

    /// The part of a tree that the source of this image has: GNU tar omits sockets, and stores several names of a device or of a
    /// pipe as files of their own.
    pub(super) fn visible(&self, tree: &Manifest) -> Manifest {
        let mut visible = Manifest::default();
        for (path, entry) in tree.entries().filter(|(_, entry)| !self.from_tar || entry.file_type != 's') {
            let mut entry = entry.clone();
            if self.from_tar && matches!(entry.file_type, 'b' | 'c' | 'p') {
                (entry.link_of, entry.link_count) = (None, 1);
            }
            visible.insert(path.to_vec(), entry);
        }
        visible
    }

    /// Builds the image; keeps a tar archive in `scratch` during the build.
    pub(super) fn run(&self, floe: &Path, tree: &Path, scratch: &Path, image: &Path) -> Outcome {
        let archive = scratch.join("tree.tar");
        if self.from_tar {
            let mut tar = Command::new("tar");
            tar.args(["--create", "--format=pax", "--xattrs", "--xattrs-include=*", "--numeric-owner", "--file"]);
            succeed(tar.arg(&archive).arg("--directory").arg(tree).arg("."))?;
        }
        let source = if self.from_tar { &archive } else { tree };
        match self.format {
            Format::Erofs => {
                succeed(Command::new(floe).args(["mkfs", "--quiet"]).args(&self.options).arg(image).arg(source))?;
            }
            Format::Squashfs => self.run_mksquashfs(floe, source, image)?,
        }
        if self.from_tar {
            fs::remove_file(&archive).during(archive.display())?;
        }
        Ok(())
    }

    /// Builds the image with two threads and with one, and compares the results.
    fn run_mksquashfs(&self, floe: &Path, source: &Path, image: &Path) -> Outcome {
        let again = image.with_extension("again");
        for (image, processors) in [(image, "2"), (&again, "1")] {
            let mut command = Command::new(floe);
            command.arg0("mksquashfs");
            if self.from_tar {
                command.arg("-").arg(image).arg("-tar").stdin(fs::File::open(source).during(source.display())?);
            } else {
                command.arg(source).arg(image).stdin(Stdio::null());
            }
            command.args(["-quiet", "-no-progress", "-noappend", "-repro", "-processors", processors]);
            succeed(command.args(&self.options))?;
        }
        let is_same = fs::read(image).during(image.display())? == fs::read(&again).during(again.display())?;
        fs::remove_file(&again).during(again.display())?;
        if is_same { Ok(()) } else { Err(TaskError::new(format!("{self}: one thread gives other bytes than two"))) }
    }
}

impl fmt::Display for Build {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = self.from_tar.then_some(FROM_TAR);
        let words: Vec<&str> = source.into_iter().chain(self.options.iter().map(String::as_str)).collect();
        formatter.write_str(if words.is_empty() { "uncompressed" } else { "" })?;
        formatter.write_str(&words.join(" "))
    }
}
