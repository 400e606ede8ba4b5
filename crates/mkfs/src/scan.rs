//! Scans the sources into a tree.

pub(crate) mod archive;
mod directory;
mod excludes;
mod pseudo;
mod whiteout;

use std::{fs, os::unix::fs::MetadataExt, path::Path};

use archive::Archive;
use directory::DirectoryScanner;
use excludes::Excludes;
use floe_image::{DIRECTORY_TOO_DEEP, ShownName, Timestamp};

use crate::{
    error::{Error, Result, shown},
    files::output_file::directory_of,
    options::{Options, Source},
    progress::Progress,
    tree::{Metadata, OrderedNode, Tree},
};

/// Scans all sources. Returns the tree and a warning for each omitted item.
pub(crate) fn scan(options: &Options, sources: &[Source], progress: &mut dyn Progress) -> Result<(Tree, Vec<String>)> {
    if sources.is_empty() {
        return Err(Error::Option("there is no source: name a directory or a tar archive".into()));
    }
    let root = Metadata { permissions: 0o755, uid: 0, gid: 0, modified: Timestamp::default() };
    let mut tree = Tree::new(root);
    let mut warnings = Vec::new();
    let mut excludes = Excludes::new(options)?;
    for output in [Some(&options.output), options.blob_device.as_ref()].into_iter().flatten() {
        if sources.iter().any(|source| matches!(source, Source::Tar(path) if is_same_file(path, output))) {
            return Err(Error::Option(format!("the output {} is also a source", output.shown())));
        }
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
        }
    }
    if let Some(path) = excludes.missing().filter(|_| options.excludes_must_match) {
        return Err(Error::Option(format!("--exclude: the source has no {}", path.shown())));
    }
    warnings.extend(pseudo::apply(&mut tree, &options.tree_changes)?);
    if options.splits_links {
        tree.split_links();
    }
    options.overlay_marks.put(&mut tree);
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

fn is_same_file(left: &Path, right: &Path) -> bool {
    let [left, right] = [left, right].map(|path| fs::metadata(path).map(|status| (status.dev(), status.ino())));
    matches!((left, right), (Ok(left), Ok(right)) if left == right)
}
