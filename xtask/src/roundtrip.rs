//! `cargo xtask roundtrip`: builds images of real trees and reads them back with every available reader.

mod build;
mod reader;
mod trees;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use floe_testkit::{
    corpus::Format,
    manifest::{Manifest, differences},
    target_dir,
    walk::{DirectoryWalk, directory},
    workspace_root,
};

use self::{build::Build, trees::Trees};
use crate::task_error::{During, Outcome, TaskError};

/// The maximum number of differences reported per reader.
const TOLD_MAX: usize = 10;

/// Builds images of trees and reads them back. Compares each with the tree: names, types, modes, owners, sizes, times,
/// xattrs, link targets, hard links and the SHA-256 of all content. Unavailable readers are skipped with a message.
/// SquashFS images are built under the name mksquashfs, with one and with two threads, which must give the same bytes
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// A tree; it must not change during the run. May be repeated [default: /usr/share, without --package and --corpus]
    #[arg(long, value_name = "DIR")]
    tree: Vec<PathBuf>,
    /// A Debian package, which apt-get downloads; its content is a tree. May be repeated
    #[arg(long, value_name = "NAME")]
    package: Vec<String>,
    /// The source trees of the reference images, too
    #[arg(long)]
    corpus: bool,
    /// The format of the images
    #[arg(long, value_parser = ["erofs", "squashfs"], default_value = "erofs")]
    format: String,
    /// Options of `floe mkfs`, or with --format squashfs of mksquashfs; the prefix `from-tar` passes the tree as a tar
    /// archive. May be repeated; each makes an image. The default is a matrix of all algorithms and layouts
    #[arg(long, value_name = "OPTIONS", allow_hyphen_values = true)]
    options: Vec<String>,
    /// Build only one image in N of the matrix for each tree, and others for the next tree
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    every: u16,
    /// Only these readers: floe, floe-mount, kernel, fsck.erofs, unsquashfs, squashfuse_ll
    #[arg(long, value_delimiter = ',', value_name = "READER")]
    reader: Vec<String>,
    /// The directory for images and their output, one at a time [default: target/]
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Use this program instead of building Floe
    #[arg(long, value_name = "PROGRAM")]
    floe: Option<PathBuf>,
}

/// Builds images and reads them back.
///
/// # Errors
/// The differences, or a program that cannot be run.
pub(crate) fn run(arguments: &Arguments) -> Outcome {
    let format = if arguments.format == "squashfs" { Format::Squashfs } else { Format::Erofs };
    let readers = reader::readers(&arguments.reader, format)?;
    let floe = match &arguments.floe {
        Some(program) => fs::canonicalize(program).during(program.display())?,
        None => release()?,
    };
    let builds: Vec<Build> = match arguments.options.as_slice() {
        [] => build::matrix(format),
        given => given.iter().map(|options| Build::parse(options, format)).collect(),
    };
    let parent = arguments.directory.clone().unwrap_or_else(target_dir);
    fs::create_dir_all(&parent).during(parent.display())?;
    let scratch = tempfile::Builder::new().prefix("roundtrip-").tempdir_in(&parent).during(parent.display())?;
    let mut trees = Trees::default();
    trees.add_given(&arguments.tree, arguments.package.is_empty() && !arguments.corpus);
    trees.add_packages(&arguments.package, scratch.path())?;
    if arguments.corpus {
        trees.add_corpus(&floe, scratch.path())?;
    }
    let every = usize::from(arguments.every);
    let (mut wrong, mut image_count, mut read_count) = (Vec::new(), 0, 0);
    for (place, (name, tree)) in trees.list.iter().enumerate() {
        let expected = within_tree(directory(tree, DirectoryWalk::default())?);
        let bytes: u64 =
            expected.entries().filter(|(_, entry)| entry.link_of.is_none()).map(|(_, entry)| entry.size).sum();
        println!("{name}: {} paths, {} MiB", expected.len(), bytes >> 20);
        // One of each N in turn, and another one of the next N: rows at equal distances could have the same compressor.
        let is_chosen = |number: usize| (number + number / every + place).is_multiple_of(every);
        for (_, build) in builds.iter().enumerate().filter(|(number, _)| is_chosen(*number)) {
            let image = scratch.path().join("image");
            let begun = Instant::now();
            build.run(&floe, tree, scratch.path(), &image)?;
            let kib = fs::metadata(&image)?.len() >> 10;
            let mut line = format!("{build}: {kib} KiB in {:.1} s:", begun.elapsed().as_secs_f64());
            image_count += 1;
            let expected = build.visible(&expected);
            for reader in readers.iter().filter(|reader| reader.reads(build, &expected)) {
                let found = reader.read(&floe, &image, format, &scratch.path().join("out"));
                let told = match found {
                    Ok(found) => {
                        let [expected, found] = [&expected, &found].map(|manifest| reader.visible(manifest, format));
                        differences(&expected, &found, &reader.comparison())
                    }
                    Err(error) => vec![error.to_string()],
                };
                read_count += 1;
                let verdict = if told.is_empty() { "equal".to_owned() } else { format!("{} differences", told.len()) };
                line += &format!(" {} {verdict},", reader.name());
                let told = told.iter().take(TOLD_MAX);
                wrong.extend(told.map(|difference| format!("{name}: {build}: {}: {difference}", reader.name())));
            }
            println!("  {}", line.trim_end_matches(','));
            fs::remove_file(&image)?;
        }
    }
    println!("{} trees, {image_count} images, read {read_count} times", trees.list.len());
    TaskError::from_lines("differences from the tree", &wrong)
}

/// Floe in its release build.
pub(crate) fn release() -> Outcome<PathBuf> {
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

/// Runs a program that must succeed.
pub(crate) fn succeed(command: &mut Command) -> Outcome {
    let output = command.output().during(command.get_program().display())?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(TaskError::new(format!("{}: {}: {}", command.get_program().display(), output.status, words.trim())))
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
