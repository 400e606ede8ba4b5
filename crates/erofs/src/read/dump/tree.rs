//! All paths of an image.

use std::{collections::HashSet, ops::ControlFlow};

use floe_image::{DirectoryCursor, Error, FileSystem, FileType, Nid, Place};

use super::{Erofs, InodeReport, inode};

/// An inode with one of its paths.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The path, starting with `/`.
    pub path: Vec<u8>,
    /// The inode.
    pub report: InodeReport,
}

/// A path that cannot be read.
#[derive(Clone, Debug)]
pub struct Unreadable {
    /// The path, starting with `/`.
    pub path: Vec<u8>,
    /// The reason.
    pub error: Error,
}

/// Visits all paths, each directory before its entries, until `visit` breaks. Reports unreadable paths and skips them;
/// does not enter a directory twice. If directories share their content, the walk ends after as many entries as the
/// image has room for.
pub fn entries(erofs: &Erofs, visit: &mut dyn FnMut(Result<Entry, Unreadable>) -> ControlFlow<()>) {
    let mut entered = HashSet::new();
    let mut left = erofs.entry_count_max();
    let mut pending = vec![(b"/".to_vec(), erofs.root())];
    while let Some((path, nid)) = pending.pop() {
        let report = match inode(erofs, nid) {
            Ok(report) => report,
            Err(error) => match visit(Err(Unreadable { path, error })) {
                ControlFlow::Continue(()) => continue,
                ControlFlow::Break(()) => return,
            },
        };
        if report.attr.file_type == FileType::Directory && entered.insert(nid) {
            let from = pending.len();
            let mut is_full = false;
            let read = erofs.read_dir(nid, DirectoryCursor::default(), &mut |dirent| {
                let Some(fewer) = left.checked_sub(1) else {
                    is_full = true;
                    return ControlFlow::Break(());
                };
                left = fewer;
                if !matches!(dirent.name, b"." | b"..") {
                    let separator: &[u8] = if path == b"/" { b"" } else { b"/" };
                    pending.push(([&path, separator, dirent.name].concat(), dirent.nid));
                }
                ControlFlow::Continue(())
            });
            if is_full {
                let rule = "directories share their content: more entries than the image has room for";
                let _ = visit(Err(Unreadable { path, error: Error::corrupt(rule, Place::inode(nid)) }));
                return;
            }
            if let Some(children) = pending.get_mut(from..) {
                children.reverse();
            }
            if let Err(error) = read
                && visit(Err(Unreadable { path: path.clone(), error })).is_break()
            {
                return;
            }
        }
        if visit(Ok(Entry { path, report })).is_break() {
            return;
        }
    }
}

/// The first path of an inode, if it has one.
pub fn path_of(erofs: &Erofs, nid: Nid) -> Option<Vec<u8>> {
    let mut found = None;
    entries(erofs, &mut |entry| match entry {
        Ok(entry) if entry.report.attr.nid == nid => {
            found = Some(entry.path);
            ControlFlow::Break(())
        }
        _ => ControlFlow::Continue(()),
    });
    found
}
