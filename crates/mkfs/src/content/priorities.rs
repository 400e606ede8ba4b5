//! The order of files by the priorities of a sort file.

use std::{cmp::Reverse, os::unix::ffi::OsStrExt, path::PathBuf};

use super::BlockFile;
use crate::tree::{OrderedNode, Tree};

/// Sorts files by their priorities, the highest first. A file has the priority of its path, or else of the directory above it.
pub(super) fn sort(files: &mut [BlockFile<'_>], tree: &Tree, order: &[OrderedNode], priorities: &[(PathBuf, i16)]) {
    if priorities.is_empty() {
        return;
    }
    let mut by_node = vec![None; tree.len()];
    for (path, priority) in priorities {
        if let Some(node) = tree.find(path.as_os_str().as_bytes()) {
            by_node[node.index()] = Some(*priority);
        }
    }
    // A directory precedes its entries.
    for ordered in order {
        by_node[ordered.node.index()] = by_node[ordered.node.index()].or(by_node[ordered.parent.index()]);
    }
    files.sort_by_key(|file| Reverse(by_node[order[file.place].node.index()].unwrap_or(0)));
    // The order is the user's, in fragments too.
    files.iter_mut().for_each(|file| file.group = 0);
}
