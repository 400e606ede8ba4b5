//! What the names of files tell about their content: which files are similar, and how each is compressed.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt, path::PathBuf};

use xxhash_rust::xxh64::xxh64;

use crate::{
    error::Result,
    options::{Coding, Options, coding::expression},
    tree::{Body, OrderedNode, Tree},
};

/// The similarity group of each node in tree order, by its first name; files of a group have the same number.
pub(crate) fn similarity_groups(tree: &Tree, order: &[OrderedNode]) -> Vec<u64> {
    let mut by_node = vec![None; tree.len()];
    for ordered in order.iter().filter(|ordered| matches!(tree.node(ordered.node).body, Body::Directory(_))) {
        for (name, node) in tree.entries(ordered.node) {
            by_node[node.index()].get_or_insert_with(|| xxh64(extension(name), 0));
        }
    }
    order.iter().map(|ordered| by_node[ordered.node.index()].unwrap_or(0)).collect()
}

/// The number of each file's coding in [`Options::codings`]; `None` if the file is not compressed. The first matching
/// hint applies. A file with several hard links is matched by its first path.
pub(crate) fn coding_numbers(tree: &Tree, order: &[OrderedNode], options: &Options) -> Result<Vec<Option<usize>>> {
    let usual = options.compression.map(|_| 0);
    if options.hints.is_empty() {
        return Ok(vec![usual; order.len()]);
    }
    let number = |coding: Coding| options.coding_number(coding);
    let hints = options.hints.iter().map(|hint| Ok((expression(&hint.expression)?, hint.coding.and_then(number))));
    let hints = hints.collect::<Result<Vec<_>>>()?;
    let mut paths = vec![None; tree.len()];
    paths[Tree::ROOT.index()] = Some(PathBuf::new());
    for ordered in order {
        if let Body::Directory(_) = tree.node(ordered.node).body {
            let directory = paths[ordered.node.index()].clone().unwrap_or_default();
            for (name, node) in tree.entries(ordered.node) {
                let path = || directory.join(OsStr::from_bytes(name));
                paths[node.index()].get_or_insert_with(path);
            }
        }
    }
    let matching = |ordered: &OrderedNode| {
        let path = paths[ordered.node.index()].as_ref()?.as_os_str().as_bytes();
        hints.iter().find(|(expression, _)| expression.is_match(path)).map(|(_, number)| *number)
    };
    Ok(order.iter().map(|ordered| matching(ordered).unwrap_or(usual)).collect())
}

/// The part of a name that determines the group: the extension without version numbers (`libc.so.6` is a `so`), or the
/// whole name if there is no extension.
fn extension(name: &[u8]) -> &[u8] {
    let mut rest = name;
    while let Some(dot) = rest.iter().rposition(|byte| *byte == b'.').filter(|dot| *dot > 0) {
        let extension = &rest[dot + 1..];
        if !extension.iter().all(u8::is_ascii_digit) {
            return extension;
        }
        rest = &rest[..dot];
    }
    if rest.len() < name.len() { &name[rest.len()..] } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_determine_the_similarity_group() {
        for (name, kind) in [
            ("libc.so.6", "so"),
            ("libstdc++.so.6.0.30", "so"),
            ("ls.1", ".1"),
            ("ls.1.gz", "gz"),
            ("README", "README"),
            (".profile", ".profile"),
            ("a.py", "py"),
            ("odd.", "."),
        ] {
            assert_eq!(extension(name.as_bytes()), kind.as_bytes(), "{name}");
        }
    }
}
