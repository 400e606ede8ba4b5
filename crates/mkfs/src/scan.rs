//! Scans the sources into a tree.

pub(crate) mod archive;
mod attributes;
mod base;
mod directory;
mod excludes;
mod image;
mod pseudo;
mod whiteout;

use std::{fs, os::unix::fs::MetadataExt, path::Path};

use archive::Archive;
use directory::DirectoryScanner;
use excludes::Excludes;
use floe_codec::release_freed_memory;
use floe_image::{DIRECTORY_TOO_DEEP, ShownName, Timestamp};
use image::ImageScanner;

use crate::{
    error::{Error, Result, shown},
    files::output_file::directory_of,
    options::{ImpliedDirectories, Options, Source},
    progress::Progress,
    tree::{Metadata, OrderedNode, Tree},
};

/// The longest target of a symbolic link, in bytes.
const LINK_TARGET_LEN_MAX: usize = 4095;

/// The maximum number of sources that are extra devices.
const DEVICES_MAX: usize = 4096;

/// Scans all sources. Returns the tree and a warning for each omitted item.
pub(crate) fn scan(options: &Options, sources: &[Source], progress: &mut dyn Progress) -> Result<(Tree, Vec<String>)> {
    if sources.is_empty() {
        return Err(Error::Option("there is no source: name a directory or a tar archive".into()));
    }
    let mut tree = Tree::new(implied_directory(options, Timestamp::default()));
    let mut warnings = Vec::new();
    let mut excludes = Excludes::new(options)?;
    for output in [Some(&options.output), options.blob_device.as_ref()].into_iter().flatten() {
        let is_output = |source: &Source| match source {
            Source::Tar(path) => is_same_file(path, output),
            Source::Image(image) if options.may_replace_source && output.is_file() => {
                options.refers_to_sources && is_same_file(image.path(), output)
            }
            Source::Image(image) => is_same_file(image.path(), output),
            Source::Directory(_) | Source::Entry(_) | Source::TarFromInput => false,
        };
        if options.base.as_ref().is_some_and(|base| is_same_file(base.path(), output)) {
            return Err(Error::Option(format!(
                "the output {} is also the base, which the image needs",
                output.shown()
            )));
        }
        if sources.iter().any(is_output) {
            return Err(Error::Option(format!("the output {} is also a source", output.shown())));
        }
    }
    if options.refers_to_sources {
        check_devices(sources)?;
    }
    for source in sources {
        match source {
            Source::Directory(path) => {
                excludes.begin_directory(path, options);
                warnings.extend(DirectoryScanner::new(&mut tree, options, &excludes).scan(path, progress)?);
                warnings.extend(excludes.end_directory());
            }
            Source::Entry(path) => {
                excludes.begin_directory(directory_of(path), options);
                warnings.extend(DirectoryScanner::new(&mut tree, options, &excludes).scan_entry(path, progress)?);
                warnings.extend(excludes.end_directory());
            }
            Source::Tar(path) => {
                let archive = Archive::open(path, options, progress)?;
                warnings.extend(archive.import(&mut tree, options, &excludes, progress)?);
            }
            Source::TarFromInput => {
                let archive = Archive::from_input(options, progress)?;
                warnings.extend(archive.import(&mut tree, options, &excludes, progress)?);
            }
            Source::Image(image) => ImageScanner::new(image, &mut tree, options, &excludes).scan(progress)?,
        }
        tree.check_complete()?;
    }
    release_freed_memory();
    if let Some(path) = excludes.missing().filter(|_| options.excludes_must_match) {
        return Err(Error::Option(format!("--exclude: the source has no {}", path.shown())));
    }
    warnings.extend(pseudo::apply(&mut tree, &options.tree_changes)?);
    attributes::set(&mut tree, &options.tree_changes, options.xattrs.keep)?;
    if options.splits_links {
        tree.split_links();
    }
    options.overlay_marks.put(&mut tree);
    tree.check_complete()?;
    if let Some(base) = &options.base {
        base::refer_to_base(&mut tree, base, options, progress)?;
    }
    let order = tree.in_order();
    if let Some(node) = tree.too_deep(&order) {
        let path = shown(&tree.path(&order, node));
        return Err(Error::Layout(format!("{path}: {DIRECTORY_TOO_DEEP}")));
    }
    let overflows = |ordered: &&OrderedNode| {
        let Metadata { uid, gid, .. } = tree.node(ordered.node).metadata;
        options.ownership.overflows(uid, gid)
    };
    match order.iter().filter(overflows).count() {
        0 => {}
        count => warnings.push(format!("the owners of {count} inodes exceed 4294967294 and wrapped around")),
    }
    Ok((tree, warnings))
}

/// Checks that all sources can be extra devices.
fn check_devices(sources: &[Source]) -> Result<()> {
    if sources.len() > DEVICES_MAX {
        return Err(Error::Option(format!("an image has at most {DEVICES_MAX} extra devices")));
    }
    match sources.iter().all(|source| matches!(source, Source::Image(_) | Source::Tar(_))) {
        true => Ok(()),
        false => Err(Error::Option("only files can be extra devices: images, and tar archives".into())),
    }
}

/// The attributes of a directory that no source describes, but for an entry with this time.
fn implied_directory(options: &Options, modified: Timestamp) -> Metadata {
    let ImpliedDirectories { permissions, uid, gid, modified: seconds } = options.implied_directories;
    let modified = seconds.map_or(modified, |seconds| Timestamp { seconds, nanoseconds: 0 });
    Metadata { permissions, uid, gid, modified }
}

fn is_same_file(left: &Path, right: &Path) -> bool {
    let [left, right] = [left, right].map(|path| fs::metadata(path).map(|status| (status.dev(), status.ino())));
    matches!((left, right), (Ok(left), Ok(right)) if left == right)
}
