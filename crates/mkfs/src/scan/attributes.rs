//! Attributes by path: SELinux labels, and Android's owners, modes and capabilities.

use crate::{
    error::Result,
    options::TreeChanges,
    tree::{Body, NodeId, Tree, xattrs::XattrSet},
};

const LABEL: &[u8] = b"security.selinux";
const CAPABILITY: &[u8] = b"security.capability";

/// Sets the attributes of all files. A file with several names has those of the first.
///
/// # Errors
/// The file system configuration lacks a file.
pub(super) fn set(tree: &mut Tree, changes: &TreeChanges, keeps_xattrs: bool) -> Result<()> {
    if changes.file_contexts.is_none() && changes.fs_config.is_none() {
        return Ok(());
    }
    let mut seen = vec![false; tree.len()];
    let mut waiting = vec![(Tree::ROOT, changes.root_path())];
    while let Some((node, path)) = waiting.pop() {
        if std::mem::replace(&mut seen[node.index()], true) {
            continue;
        }
        set_one(tree, node, if path.is_empty() { b"/" } else { &path }, changes, keeps_xattrs)?;
        if matches!(tree.node(node).body, Body::Directory(_)) {
            // The first name is on top.
            let before = waiting.len();
            waiting.extend(tree.entries(node).map(|(name, child)| (child, [&path[..], b"/", name].concat())));
            waiting[before..].reverse();
        }
    }
    Ok(())
}

fn set_one(tree: &mut Tree, node: NodeId, path: &[u8], changes: &TreeChanges, keeps_xattrs: bool) -> Result<()> {
    let file_type = tree.node(node).file_type();
    let contexts = changes.file_contexts.as_ref();
    let label = contexts.map(|contexts| contexts.label(path, file_type).map(<[u8]>::to_vec));
    let is_root = node == Tree::ROOT;
    let node = tree.node_mut(node);
    let mut capability = None;
    if let Some(config) = &changes.fs_config {
        let entry = config.entry(path, is_root)?;
        (node.metadata.uid, node.metadata.gid) = (entry.uid, entry.gid);
        node.metadata.permissions = entry.permissions;
        capability = Some(entry.capability_value());
    }
    if keeps_xattrs {
        // A file without a label or capabilities in the rules loses those of its source.
        label.into_iter().for_each(|value| put(&mut node.xattrs, LABEL, value));
        capability.into_iter().for_each(|value| put(&mut node.xattrs, CAPABILITY, value));
    }
    Ok(())
}

/// Sets or removes an xattr.
fn put(xattrs: &mut XattrSet, name: &[u8], value: Option<Vec<u8>>) {
    let known = xattrs.iter().find(|(known, _)| **known == *name).map(|(_, value)| value.to_vec());
    if known == value {
        return;
    }
    let changed = xattrs.to_mut();
    changed.retain(|(known, _)| **known != *name);
    changed.extend(value.map(|value| (name.into(), value.into())));
    changed.sort();
    if changed.is_empty() {
        *xattrs = XattrSet::default();
    }
}
