//! Per-file compression settings.

use std::os::unix::ffi::OsStrExt;

use floe_codec::encode::Compression;

use crate::{
    error::Result,
    excludes::expression,
    options::Options,
    tree::{Body, Tree, Visit},
};

/// A compression method with its pcluster size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Coding {
    /// The codec and its settings.
    pub compression: Compression,
    /// The pcluster size in bytes.
    pub pcluster_bytes: u32,
}

/// A compression setting for some files.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hint {
    /// An extended regular expression that matches some part of the path, which has no leading slash.
    pub expression: String,
    /// The coding of matching files; `None` stores them uncompressed.
    pub coding: Option<Coding>,
}

/// The number of each file's coding in [`Options::codings`]; `None` if the file is not compressed. The first matching
/// hint applies. A file with several hard links is matched by its first path.
pub(crate) fn coding_numbers(tree: &Tree, visits: &[Visit], options: &Options) -> Result<Vec<Option<usize>>> {
    let usual = options.compression.map(|_| 0);
    if options.hints.is_empty() {
        return Ok(vec![usual; visits.len()]);
    }
    let number = |coding: Coding| options.coding_number(coding);
    let hints = options.hints.iter().map(|hint| Ok((expression(&hint.expression)?, hint.coding.and_then(number))));
    let hints = hints.collect::<Result<Vec<_>>>()?;
    let mut paths = vec![None; tree.len()];
    paths[Tree::ROOT.index()] = Some(std::path::PathBuf::new());
    for visit in visits {
        if let Body::Directory(_) = tree.node(visit.node).body {
            let directory = paths[visit.node.index()].clone().unwrap_or_default();
            for (name, node) in tree.entries(visit.node) {
                let path = || directory.join(std::ffi::OsStr::from_bytes(name));
                paths[node.index()].get_or_insert_with(path);
            }
        }
    }
    let matching = |visit: &Visit| {
        let path = paths[visit.node.index()].as_ref()?.as_os_str().as_bytes();
        hints.iter().find(|(expression, _)| expression.is_match(path)).map(|(_, number)| *number)
    };
    Ok(visits.iter().map(|visit| matching(visit).unwrap_or(usual)).collect())
}
