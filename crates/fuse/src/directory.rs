//! Entries of directories, straight from the format into the reply.

use std::{ffi::OsStr, ops::ControlFlow, os::unix::ffi::OsStrExt};

use floe_image::{DirectoryCursor, Dirent, FileSystem, Nid, Result};
use fuser::{FileAttr, Generation, INodeNo, ReplyDirectory, ReplyDirectoryPlus};

use crate::{
    attributes::{AttributeView, kind},
    deadline::Watched,
    edge::ENDLESS,
    node_numbers::NodeNumbers,
};

/// Fills a reply with names from `offset` on.
///
/// # Errors
/// The directory cannot be read and nothing was filled in. Where something was, the next request meets the fault.
pub(crate) fn fill(
    file_system: &dyn FileSystem,
    directory: Nid,
    offset: u64,
    reply: &Watched<ReplyDirectory>,
) -> Result<()> {
    visit(file_system, directory, offset, |entry| {
        let name = OsStr::from_bytes(entry.name);
        reply.with(|reply| reply.add(INodeNo(entry.inode_number), entry.next.0, kind(entry.file_type), name))
    })
}

/// Fills a reply with names and attributes from `offset` on.
///
/// # Errors
/// As [`fill`].
pub(crate) fn fill_plus(
    file_system: &dyn FileSystem,
    directory: Nid,
    offset: u64,
    nodes: &NodeNumbers,
    attributes: &AttributeView,
    reply: &Watched<ReplyDirectoryPlus>,
) -> Result<()> {
    visit(file_system, directory, offset, |entry| {
        let attr = match entry.name {
            b"." | b".." => refused(&entry, attributes),
            _ => entry_attr(file_system, &entry, nodes, attributes),
        };
        let name = OsStr::from_bytes(entry.name);
        let is_full = reply.with(|reply| reply.add(attr.ino, entry.next.0, name, &ENDLESS, &attr, Generation(0)));
        if is_full != Some(false) && !matches!(entry.name, b"." | b"..") {
            nodes.forget(attr.ino.0, 1);
        }
        is_full
    })
}

/// The attributes to give with an entry. The kernel then knows the inode, or will say that it has forgotten it.
///
/// The number in them is shown as `d_ino` and taken as the node number. Where an inode has another node number, or no
/// attributes because it is corrupt, the kernel must not take it: whoever wants more looks the name up.
fn entry_attr(
    file_system: &dyn FileSystem,
    entry: &Dirent<'_>,
    nodes: &NodeNumbers,
    attributes: &AttributeView,
) -> FileAttr {
    if let Ok(attr) = file_system.attr(entry.nid)
        && attr.inode_number == entry.inode_number
        && let Ok(node) = nodes.learn(&attr)
    {
        if node == entry.inode_number {
            return attributes.file_attr(&attr, node);
        }
        nodes.forget(node, 1);
    }
    nodes.owe_forget(entry.inode_number, entry.nid);
    refused(entry, attributes)
}

/// Attributes that the kernel refuses, because no size is so large: it shows the name, the number and the type, and
/// learns nothing.
fn refused(entry: &Dirent<'_>, attributes: &AttributeView) -> FileAttr {
    FileAttr { size: u64::MAX, ..attributes.blank(entry.inode_number, entry.file_type) }
}

/// Visits entries until `add` says that the reply is full or gone.
fn visit(
    file_system: &dyn FileSystem,
    directory: Nid,
    offset: u64,
    mut add: impl FnMut(Dirent<'_>) -> Option<bool>,
) -> Result<()> {
    let mut is_empty = true;
    let result = file_system.read_dir(directory, DirectoryCursor(offset), &mut |entry| match add(entry) {
        Some(false) => {
            is_empty = false;
            ControlFlow::Continue(())
        }
        _ => ControlFlow::Break(()),
    });
    if is_empty { result } else { Ok(()) }
}
