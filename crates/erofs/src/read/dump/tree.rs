//! All paths of an image.

use std::{collections::HashSet, ops::ControlFlow};

use floe_image::{DirectoryCursor, Error, FileSystem, FileType, Nid, Place};

use super::{Erofs, InodeReport, inode};

/// An inode with one of its paths.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry<'a> {
    /// The path, starting with `/`.
    pub path: &'a [u8],
    /// The inode.
    pub report: InodeReport,
}

/// A path that cannot be read.
#[derive(Clone, Debug)]
pub struct Unreadable<'a> {
    /// The path, starting with `/`.
    pub path: &'a [u8],
    /// The reason.
    pub error: Error,
}

/// A directory on the way from the root to the current entry. Only the current entry has a whole path: in deep trees, the
/// paths of all pending entries would take memory without bound.
struct Level {
    /// The length of its path, without a slash at the end.
    path_len: usize,
    /// The entries that were not visited yet, the next one last.
    pending: Vec<(Box<[u8]>, Nid)>,
}

/// Visits all paths, each directory before its entries, until `visit` breaks. Reports unreadable paths and skips them;
/// does not enter a directory twice. If directories share their content, the walk ends after as many entries as the
/// image has room for.
pub fn entries(erofs: &Erofs, visit: &mut dyn FnMut(Result<Entry<'_>, Unreadable<'_>>) -> ControlFlow<()>) {
    let mut entered = HashSet::new();
    let mut left = erofs.entry_count_max();
    let mut path = Vec::new();
    let mut levels: Vec<Level> = Vec::new();
    let mut next = Some(erofs.root());
    while let Some(nid) = next {
        let path_of_entry: &[u8] = if path.is_empty() { b"/" } else { &path };
        let unreadable = |error| Err(Unreadable { path: path_of_entry, error });
        let flow = match inode(erofs, nid) {
            Err(error) => visit(unreadable(error)),
            Ok(report) => {
                if report.attr.file_type == FileType::Directory && entered.insert(nid) {
                    let listing = Listing::read(erofs, nid, &mut left);
                    levels.push(Level { path_len: path.len(), pending: listing.pending });
                    if let Some(error) = listing.fault
                        && (visit(unreadable(error)).is_break() || listing.is_over)
                    {
                        return;
                    }
                }
                visit(Ok(Entry { path: path_of_entry, report }))
            }
        };
        if flow.is_break() {
            return;
        }
        next = step(&mut levels, &mut path);
    }
}

/// The entries of a directory, as far as they can be read.
struct Listing {
    /// The first entry is the last.
    pending: Vec<(Box<[u8]>, Nid)>,
    fault: Option<Error>,
    /// Whether the image has no room for more entries.
    is_over: bool,
}

impl Listing {
    /// Reads a directory; each entry takes one off `left`.
    fn read(erofs: &Erofs, nid: Nid, left: &mut u64) -> Self {
        let (mut pending, mut is_over) = (Vec::new(), false);
        let read = erofs.read_dir(nid, DirectoryCursor::default(), &mut |dirent| {
            let Some(fewer) = left.checked_sub(1) else {
                is_over = true;
                return ControlFlow::Break(());
            };
            *left = fewer;
            if !matches!(dirent.name, b"." | b"..") {
                pending.push((Box::from(dirent.name), dirent.nid));
            }
            ControlFlow::Continue(())
        });
        pending.reverse();
        let rule = "directories share their content: more entries than the image has room for";
        let fault = if is_over { Some(Error::corrupt(rule, Place::inode(nid))) } else { read.err() };
        Self { pending, fault, is_over }
    }
}

/// Makes `path` the path of the next entry, and returns its inode.
fn step(levels: &mut Vec<Level>, path: &mut Vec<u8>) -> Option<Nid> {
    loop {
        let level = levels.last_mut()?;
        path.truncate(level.path_len);
        if let Some((name, nid)) = level.pending.pop() {
            path.push(b'/');
            path.extend_from_slice(&name);
            return Some(nid);
        }
        levels.pop();
    }
}

/// The first path of an inode, if it has one.
pub fn path_of(erofs: &Erofs, nid: Nid) -> Option<Vec<u8>> {
    let mut found = None;
    entries(erofs, &mut |entry| match entry {
        Ok(entry) if entry.report.attr.nid == nid => {
            found = Some(entry.path.to_vec());
            ControlFlow::Break(())
        }
        _ => ControlFlow::Continue(()),
    });
    found
}
