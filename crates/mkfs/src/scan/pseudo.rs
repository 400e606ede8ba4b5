//! Changes of the options to a tree.

use std::{io, path::Path, sync::Arc};

use floe_image::Timestamp;

use crate::{
    error::{Error, Result, shown},
    options::{PseudoAction, PseudoAttributes, PseudoBody, PseudoFile, TreeChanges},
    tree::{Body, Metadata, Node, NodeId, Tree, content::Content, xattrs::XattrSet},
};

/// The longest name in bytes.
const NAME_LEN_MAX: usize = 255;

/// Applies the changes. Returns a warning for each that does not fit the tree.
pub(super) fn apply(tree: &mut Tree, changes: &TreeChanges) -> Result<Vec<String>> {
    if let Some(path) = &changes.root_directory {
        make_root(tree, path, changes.retargets_links)?;
    }
    let metadata = &mut tree.node_mut(Tree::ROOT).metadata;
    metadata.permissions = changes.root.permissions.unwrap_or(metadata.permissions);
    metadata.uid = changes.root.uid.unwrap_or(metadata.uid);
    metadata.gid = changes.root.gid.unwrap_or(metadata.gid);
    metadata.modified = changes.root.modified.map_or(metadata.modified, whole_seconds);
    let mut warnings = Vec::new();
    for PseudoFile { path, action } in &changes.pseudo_files {
        if let Err(reason) = change(tree, path, action)? {
            warnings.push(format!("{}: {reason}; it was ignored", shown(path)));
        }
    }
    Ok(warnings)
}

/// Makes the directory at `path` the root.
fn make_root(tree: &mut Tree, path: &[u8], retargets_links: bool) -> Result<()> {
    let directory = tree.find(path).filter(|node| matches!(tree.node(*node).body, Body::Directory(_)));
    let directory =
        directory.ok_or_else(|| Error::Option(format!("{}: the source has no such directory", shown(path))))?;
    tree.make_root(directory);
    if retargets_links {
        let nodes: Vec<NodeId> = tree.all().collect();
        for node in nodes {
            if let Body::Symlink(target) = &mut tree.node_mut(node).body
                && let Some(retargeted) = target_below(path, target)
            {
                *target = retargeted.into();
            }
        }
    }
    Ok(())
}

/// The target of a link to something below the directory at `path` once that is the root.
fn target_below(path: &[u8], target: &[u8]) -> Option<Vec<u8>> {
    let names = |path: &[u8]| -> Vec<Vec<u8>> {
        let names = path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b"."));
        names.map(<[u8]>::to_vec).collect()
    };
    let (directory, target) = (names(path), names(target));
    let below = target.strip_prefix(directory.as_slice()).filter(|below| !below.is_empty())?;
    if target.iter().any(|name| name == b"..") { None } else { Some([&b"/"[..], &below.join(&b'/')].concat()) }
}

/// Applies a change; the inner error is why it does not fit the tree.
fn change(tree: &mut Tree, path: &[u8], action: &PseudoAction) -> Result<std::result::Result<(), &'static str>> {
    let known = tree.find(path);
    Ok(match (action, known) {
        (PseudoAction::Modify(attributes), Some(node)) => {
            let metadata = &mut tree.node_mut(node).metadata;
            *metadata = of_attributes(attributes, metadata.modified);
            Ok(())
        }
        (PseudoAction::SetXattr { name, value }, Some(node)) => {
            let xattrs = tree.node_mut(node).xattrs.to_mut();
            xattrs.retain(|(known, _)| **known != **name);
            xattrs.push((name.as_slice().into(), value.as_slice().into()));
            xattrs.sort();
            Ok(())
        }
        (PseudoAction::Modify(_) | PseudoAction::SetXattr { .. }, None) => {
            Err("the sources have nothing there to change")
        }
        (PseudoAction::Add(..) | PseudoAction::Link(_), Some(_)) => Err("the sources have something there"),
        (PseudoAction::Add(body, attributes), None) => {
            let (directory, name) = place(tree, path)?;
            let (metadata, body) = (of_attributes(attributes, Timestamp::default()), body_of(body, path)?);
            let node = tree.add(Node { metadata, xattrs: XattrSet::default(), body });
            tree.link(directory, name, node);
            Ok(())
        }
        (PseudoAction::Link(target), None) => match tree.find(target) {
            Some(node) if !matches!(tree.node(node).body, Body::Directory(_)) => {
                let (directory, name) = place(tree, path)?;
                tree.link(directory, name, node);
                Ok(())
            }
            Some(_) => Err("a directory has no hard links"),
            None => Err("the target of the hard link does not exist"),
        },
    })
}

/// The directory of a path, and its last name.
fn place<'p>(tree: &Tree, path: &'p [u8]) -> Result<(NodeId, &'p [u8])> {
    let unfit = |reason: &str| Error::Option(format!("{}: {reason}", shown(path)));
    let trimmed = path.trim_ascii_end().strip_suffix(b"/").unwrap_or(path);
    let (parent, name) = match trimmed.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&trimmed[..slash], &trimmed[slash + 1..]),
        None => (&[][..], trimmed),
    };
    if matches!(name, b"" | b"." | b"..") || name.len() > NAME_LEN_MAX || name.contains(&0) {
        return Err(unfit("a pseudo file needs a name of at most 255 bytes"));
    }
    let directory = tree.find(parent).filter(|node| matches!(tree.node(*node).body, Body::Directory(_)));
    Ok((directory.ok_or_else(|| unfit("the directory of the pseudo file does not exist"))?, name))
}

fn body_of(body: &PseudoBody, path: &[u8]) -> Result<Body> {
    Ok(match body {
        PseudoBody::Directory => Body::Directory(Default::default()),
        PseudoBody::File(file) => {
            let name = shown(path);
            let status = file.metadata().map_err(|error: io::Error| Error::source(&name, "look at")(error))?;
            Body::File(Content::of_temporary(Arc::clone(file), Path::new(&name), status.len()))
        }
        PseudoBody::Symlink(target) if target.is_empty() => {
            return Err(Error::Option(format!("{}: a symbolic link needs a target", shown(path))));
        }
        PseudoBody::Symlink(target) => Body::Symlink(target.as_slice().into()),
        PseudoBody::Special(file_type, device) => Body::Special(*file_type, *device),
    })
}

fn of_attributes(attributes: &PseudoAttributes, modified: Timestamp) -> Metadata {
    let PseudoAttributes { permissions, uid, gid, .. } = *attributes;
    Metadata { permissions, uid, gid, modified: attributes.modified.map_or(modified, whole_seconds) }
}

fn whole_seconds(seconds: i64) -> Timestamp {
    Timestamp { seconds, nanoseconds: 0 }
}
