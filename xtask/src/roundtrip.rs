//! `cargo xtask roundtrip`: builds images of a real tree and reads them back with every available reader.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use floe_testkit::{
    KernelMount,
    corpus::{Format, Materialised},
    manifest::{Comparison, Manifest, differences},
    peer,
    skip::Need,
    target_dir,
    walk::{DirectoryWalk, directory},
    workspace_root,
};

use crate::task_error::{During, Outcome, TaskError};

/// The maximum number of differences reported per reader.
const TOLD_MAX: usize = 10;

/// Builds images of a tree and reads them back. Compares each with the tree: names, types, modes, owners, sizes, times,
/// xattrs, link targets, hard links and the SHA-256 of all content. Unavailable readers are skipped with a message
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The tree; it must not change during the run
    #[arg(long, value_name = "DIR", default_value = "/usr/share")]
    tree: PathBuf,
    /// Options of `floe mkfs`; the prefix `from-tar` passes the tree as a tar archive. May be repeated; each makes an
    /// image. The default is a matrix of all algorithms and layouts
    #[arg(long, value_name = "OPTIONS", allow_hyphen_values = true)]
    options: Vec<String>,
    /// Only these readers: floe, kernel, fsck.erofs
    #[arg(long, value_delimiter = ',', value_name = "READER")]
    reader: Vec<String>,
    /// The directory for images and their output, one at a time [default: target/]
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Use this program instead of building Floe
    #[arg(long, value_name = "PROGRAM")]
    floe: Option<PathBuf>,
}

/// The default options.
const MATRIX: [&str; 16] = [
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

/// Builds images and reads them back.
///
/// # Errors
/// The differences, or a program that cannot be run.
pub(crate) fn run(arguments: &Arguments) -> Outcome {
    let readers = readers(&arguments.reader)?;
    let floe = match &arguments.floe {
        Some(program) => program.clone(),
        None => release()?,
    };
    let builds: Vec<Build> = match arguments.options.as_slice() {
        [] => MATRIX.iter().map(|options| Build::parse(options)).collect(),
        given => given.iter().map(|options| Build::parse(options)).collect(),
    };
    let parent = arguments.directory.clone().unwrap_or_else(target_dir);
    fs::create_dir_all(&parent).during(parent.display())?;
    let scratch = tempfile::Builder::new().prefix("roundtrip-").tempdir_in(&parent).during(parent.display())?;
    let expected = within_tree(directory(&arguments.tree, DirectoryWalk::default())?);
    let bytes: u64 = expected.entries().filter(|(_, entry)| entry.link_of.is_none()).map(|(_, entry)| entry.size).sum();
    println!("{}: {} paths, {} MiB", arguments.tree.display(), expected.len(), bytes >> 20);
    let mut wrong = Vec::new();
    for build in &builds {
        let image = scratch.path().join("image.erofs");
        let begun = Instant::now();
        build.run(&floe, &arguments.tree, scratch.path(), &image)?;
        let mib = fs::metadata(&image)?.len() >> 20;
        println!("{build}: {mib} MiB in {:.1} s", begun.elapsed().as_secs_f64());
        for reader in &readers {
            let begun = Instant::now();
            let found = reader.read(&floe, &image, &scratch.path().join("out"))?;
            let told = differences(&reader.visible(&expected), &reader.visible(&found), &reader.comparison());
            let seconds = begun.elapsed().as_secs_f64();
            let verdict = if told.is_empty() { "equal".to_owned() } else { format!("{} differences", told.len()) };
            println!("  {}: {verdict}, {seconds:.1} s", reader.name());
            let told = told.iter().take(TOLD_MAX);
            wrong.extend(told.map(|difference| format!("{build}: {}: {difference}", reader.name())));
        }
        fs::remove_file(&image)?;
    }
    TaskError::from_lines("differences from the tree", &wrong)
}

fn readers(wanted: &[String]) -> Outcome<Vec<Reader>> {
    if let Some(unknown) = wanted.iter().find(|name| Reader::ALL.iter().all(|reader| reader.name() != **name)) {
        return Err(TaskError::new(format!("unknown reader {unknown}: choose floe, kernel or fsck.erofs")));
    }
    let wanted = |reader: &Reader| wanted.is_empty() || wanted.iter().any(|name| name == reader.name());
    let mut here = Vec::new();
    for reader in Reader::ALL.into_iter().filter(wanted) {
        match reader.missing() {
            None => here.push(reader),
            Some(reason) => println!("skipped: {}: {reason}", reader.name()),
        }
    }
    Ok(here)
}

/// Floe in its release build.
fn release() -> Outcome<PathBuf> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    let status = command.args(["build", "--release", "--package", "floe-cli"]).current_dir(workspace_root()).status();
    match status.during("cargo cannot be run")?.success() {
        true => Ok(target_dir().join("release/floe")),
        false => Err(TaskError::new("building Floe failed")),
    }
}

/// The manifest with link counts within the tree: links from outside are not part of an image.
fn within_tree(mut manifest: Manifest) -> Manifest {
    let mut counts = std::collections::BTreeMap::<Vec<u8>, u64>::new();
    for (path, entry) in manifest.entries().filter(|(_, entry)| entry.file_type != 'd') {
        *counts.entry(entry.link_of.clone().unwrap_or_else(|| path.to_vec())).or_default() += 1;
    }
    for (path, entry) in manifest.entries_mut() {
        if let Some(count) = counts.get(entry.link_of.as_deref().unwrap_or(path)) {
            entry.link_count = *count;
        }
    }
    manifest
}

/// Removes a directory if it exists.
fn remove(directory: &Path) -> Outcome {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        result => result.during(directory.display()),
    }
}

/// The prefix that passes the tree as a tar archive.
const FROM_TAR: &str = "from-tar";

/// An image to be made: with which options, and of what.
struct Build {
    options: Vec<String>,
    from_tar: bool,
}

impl Build {
    /// Parses options of `floe mkfs` with the optional prefix `from-tar`.
    fn parse(text: &str) -> Self {
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        let from_tar = words.first().is_some_and(|word| word == FROM_TAR);
        Self { options: words.into_iter().skip(usize::from(from_tar)).collect(), from_tar }
    }

    /// Builds the image; keeps a tar archive in `scratch` during the build.
    fn run(&self, floe: &Path, tree: &Path, scratch: &Path, image: &Path) -> Outcome {
        let archive = scratch.join("tree.tar");
        let mut mkfs = Command::new(floe);
        mkfs.args(["mkfs", "--quiet"]).args(&self.options).arg(image);
        if self.from_tar {
            let mut tar = Command::new("tar");
            tar.args(["--create", "--format=pax", "--xattrs", "--xattrs-include=*", "--numeric-owner", "--file"]);
            succeed(tar.arg(&archive).arg("--directory").arg(tree).arg("."))?;
            succeed(mkfs.arg(&archive))?;
            std::fs::remove_file(&archive).during(archive.display())
        } else {
            succeed(mkfs.arg(tree))
        }
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

/// Runs a program that must succeed.
fn succeed(command: &mut Command) -> Outcome {
    let output = command.output().during(command.get_program().display())?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(TaskError::new(format!("{}: {}: {}", command.get_program().display(), output.status, words.trim())))
}

/// The reference tool that extracts images.
const FSCK: &str = "fsck.erofs";

/// A reader of images.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reader {
    /// `floe extract`.
    Floe,
    /// A mount by the kernel.
    Kernel,
    /// `fsck.erofs --extract`.
    Fsck,
}

impl Reader {
    /// All of them.
    const ALL: [Self; 3] = [Self::Floe, Self::Kernel, Self::Fsck];

    /// Its name.
    fn name(self) -> &'static str {
        match self {
            Self::Floe => "floe",
            Self::Kernel => "kernel",
            Self::Fsck => FSCK,
        }
    }

    /// Why the reader is not available; `None` if it is.
    fn missing(self) -> Option<String> {
        match self {
            Self::Floe => Need::Root.missing(),
            Self::Kernel => Need::KernelErofs.missing(),
            Self::Fsck => Need::Root.missing().or_else(|| Need::Peer(FSCK).missing()),
        }
    }

    /// The manifest of the image according to this reader. `out` is a directory that is created and removed.
    fn read(self, floe: &Path, image: &Path, out: &Path) -> Outcome<Manifest> {
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
    fn visible(self, manifest: &Manifest) -> Manifest {
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
    fn comparison(self) -> Comparison {
        Comparison { directory_shape_is_free: true, ..Comparison::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_from_outside_do_not_count() {
        let folder = tempfile::tempdir().expect("a folder");
        let tree = folder.path().join("tree");
        fs::create_dir(&tree).expect("created");
        for (name, others) in [("alone", vec![]), ("out", vec!["../out"]), ("in", vec!["in2", "../in3"])] {
            fs::write(tree.join(name), name).expect("written");
            others.iter().for_each(|other| fs::hard_link(tree.join(name), tree.join(other)).expect("linked"));
        }
        let manifest = within_tree(directory(&tree, DirectoryWalk::default()).expect("walked"));
        for (path, count) in [("/alone", 1), ("/out", 1), ("/in", 2), ("/in2", 2)] {
            assert_eq!(manifest.entry(path.as_bytes()).expect("found").link_count, count, "{path}");
        }
    }
}
