//! Entries of directories, straight from the format into the reply.

use std::{ffi::OsStr, ops::ControlFlow, os::unix::ffi::OsStrExt};

use floe_engine::ListedFile;
use floe_image::{DirectoryCursor, Dirent, Error, FileSystem, Nid, Result};
use fuser::{FileAttr, Generation, INodeNo, ReplyDirectory, ReplyDirectoryPlus};

use crate::{
    inodes::attributes::{AttributeView, kind},
    inodes::served::Served,
    requests::deadline::Filling,
};

/// Fills a reply with names from `offset` on.
///
/// # Errors
/// The directory cannot be read and nothing was filled in. Where something was, the next request meets the fault.
pub(crate) fn fill(
    file_system: &dyn FileSystem,
    directory: Nid,
    offset: u64,
    reply: &Filling<ReplyDirectory>,
) -> Result<()> {
    visit(file_system, directory, offset, |entry| {
        let name = OsStr::from_bytes(entry.name);
        Ok(reply.with(|reply| reply.add(INodeNo(entry.inode_number), entry.next.0, kind(entry.file_type), name)))
    })
}

/// Fills a reply with names and attributes from `offset` on; gives the regular files among them that have data.
///
/// # Errors
/// As [`fill`].
pub(crate) fn fill_plus(
    file_system: &dyn FileSystem,
    directory: Nid,
    offset: u64,
    served: &Served,
    reply: &Filling<ReplyDirectoryPlus>,
) -> Result<Vec<ListedFile>> {
    let mut files = Vec::new();
    visit(file_system, directory, offset, |entry| {
        let is_dot = matches!(entry.name, b"." | b"..");
        let attr = if is_dot { refused(&entry, &served.attributes) } else { entry_attr(file_system, &entry, served)? };
        let name = OsStr::from_bytes(entry.name);
        let is_full = reply.with(|reply| reply.add(attr.ino, entry.next.0, name, &served.keep, &attr, Generation(0)));
        if is_full != Some(false) && !is_dot {
            served.nodes.forget(attr.ino.0, 1);
        } else if attr.kind == fuser::FileType::RegularFile && !matches!(attr.size, 0 | u64::MAX) {
            files.push(ListedFile { nid: entry.nid, size: attr.size });
        }
        Ok(is_full)
    })?;
    Ok(files)
}

/// The attributes to give with an entry. The kernel then knows the inode, or will say that it has forgotten it.
///
/// The number in them is shown as `d_ino` and taken as the node number. Where an inode has another node number, or no
/// attributes because it is corrupt, the kernel must not take it: whoever wants more looks the name up.
///
/// # Errors
/// The attributes are not at hand, and may not be waited for here.
fn entry_attr(file_system: &dyn FileSystem, entry: &Dirent<'_>, served: &Served) -> Result<FileAttr> {
    let (nodes, attributes) = (&served.nodes, &served.attributes);
    match file_system.attr(entry.nid) {
        Err(error @ Error::WouldBlock) => return Err(error),
        Ok(attr) if attr.inode_number == entry.inode_number => match nodes.learn(&attr) {
            Ok(node) if node == entry.inode_number => return Ok(attributes.file_attr(&attr, node)),
            Ok(node) => nodes.forget(node, 1),
            Err(_) => {}
        },
        _ => {}
    }
    nodes.owe_forget(entry.inode_number, entry.nid);
    Ok(refused(entry, attributes))
}

/// Attributes that the kernel refuses, because no size is so large: it shows the name, the number and the type, and
/// learns nothing.
fn refused(entry: &Dirent<'_>, attributes: &AttributeView) -> FileAttr {
    FileAttr { size: u64::MAX, ..attributes.blank(entry.inode_number, entry.file_type) }
}

/// Visits entries until `add` says that the reply is full (`true`), gone (`None`) or cannot be filled further.
fn visit(
    file_system: &dyn FileSystem,
    directory: Nid,
    offset: u64,
    mut add: impl FnMut(Dirent<'_>) -> Result<Option<bool>>,
) -> Result<()> {
    let mut is_empty = true;
    let mut failed = Ok(());
    let result = file_system.read_dir(directory, DirectoryCursor(offset), &mut |entry| match add(entry) {
        Ok(Some(false)) => {
            is_empty = false;
            ControlFlow::Continue(())
        }
        Ok(_) => ControlFlow::Break(()),
        Err(error) => {
            failed = Err(error);
            ControlFlow::Break(())
        }
    });
    if is_empty { result.and(failed) } else { Ok(()) }
}
