//! Directory entries, written directly from the format into the reply.

use std::ops::ControlFlow;

use floe_engine::ListedFile;
use floe_fuse_wire::{DirectoryEntries, DirectoryEntry, abi::EntryOut};
use floe_image::{Attr, DirectoryCursor, Dirent, Error, FileSystem, FileType, Nid, Result};

use crate::inodes::{attributes::kind, listings::Allowance};

/// Returns the names of a directory from `offset` on, as many as fit into `len_max` bytes.
///
/// # Errors
/// The directory cannot be read and no entry was found. If entries were found, they are returned and the next request
/// gets the error.
pub(crate) fn names(
    file_system: &dyn FileSystem,
    directory: Nid,
    offset: u64,
    len_max: usize,
) -> Result<DirectoryEntries> {
    let mut entries = DirectoryEntries::new(len_max);
    visit(file_system, directory, offset, |dirent| Ok(entries.add(&entry(&dirent))))?;
    Ok(entries)
}

/// Entries of a directory with attributes.
pub(crate) struct Listed {
    pub(crate) entries: DirectoryEntries,
    /// The regular files with data among the entries with attributes.
    pub(crate) files: Vec<ListedFile>,
    /// The part of the lister's allowance that is left.
    pub(crate) left: Allowance,
    /// The offset from which to continue; `None` if there is no entry.
    pub(crate) next: Option<u64>,
}

/// Returns the entries of a directory from `offset` on, as many as fit into `len_max` bytes, with attributes as far as
/// `allowed`, in the form that `entry_of` gives them.
///
/// # Errors
/// As [`names`].
pub(crate) fn names_and_attributes(
    file_system: &dyn FileSystem,
    directory: Nid,
    offset: u64,
    len_max: usize,
    entry_of: impl Fn(&Attr) -> EntryOut,
    allowed: Allowance,
) -> Result<Listed> {
    let mut entries = DirectoryEntries::new(len_max);
    let mut files = Vec::new();
    let mut left = allowed;
    let mut next = None;
    visit(file_system, directory, offset, |dirent| {
        let is_dot = matches!(dirent.name, b"." | b"..");
        let attr = if is_dot || !left.take(dirent.file_type == FileType::Directory) {
            None
        } else {
            match file_system.attr(dirent.nid) {
                Err(error @ Error::WouldBlock) => return Err(error),
                // An entry with a corrupt inode is listed without attributes; accesses to that inode get the error.
                attr => attr.ok(),
            }
        };
        let node = attr.as_ref().map_or(EntryOut::default(), &entry_of);
        let has_room = entries.add_with_node(&entry(&dirent), &node);
        if let Some(attr) = attr.filter(|attr| has_room && attr.file_type == FileType::Regular && attr.size > 0) {
            files.push(ListedFile { nid: attr.nid, size: attr.size });
        }
        if has_room {
            next = Some(dirent.next.0);
        }
        Ok(has_room)
    })?;
    Ok(Listed { entries, files, left, next })
}

fn entry<'name>(dirent: &Dirent<'name>) -> DirectoryEntry<'name> {
    DirectoryEntry {
        inode_number: dirent.inode_number,
        next: dirent.next.0,
        kind: kind(dirent.file_type),
        name: dirent.name,
    }
}

/// Visits entries until `add` returns false (no room left) or fails.
fn visit(
    file_system: &dyn FileSystem,
    directory: Nid,
    offset: u64,
    mut add: impl FnMut(Dirent<'_>) -> Result<bool>,
) -> Result<()> {
    let mut is_empty = true;
    let mut failed = Ok(());
    let result = file_system.read_dir(directory, DirectoryCursor(offset), &mut |dirent| match add(dirent) {
        Ok(true) => {
            is_empty = false;
            ControlFlow::Continue(())
        }
        Ok(false) => ControlFlow::Break(()),
        Err(error) => {
            failed = Err(error);
            ControlFlow::Break(())
        }
    });
    if is_empty { result.and(failed) } else { Ok(()) }
}
