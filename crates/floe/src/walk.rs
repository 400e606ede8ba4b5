//! A walk through a tree.

use std::{collections::HashSet, ffi::OsStr, fmt, os::unix::ffi::OsStrExt, sync::Arc};

use floe_image::{Attr, Error, FileSystem, FileType, Nid, Place};

use crate::{EntryLimit, ReadDir};

/// How deep directories may lie in one another. A path that `open` takes has at most 2,048 names.
const DEPTH_MAX: usize = 4096;

/// Visits an inode and all that lies below it, directories before their content, in the order of the image.
///
/// Each directory is entered once: one that is found again, be it in itself or elsewhere, is an error and is passed by.
/// The walk ends where there are more entries than the image has room for ([`EntryLimit`]).
/// After an error the walk goes on with what follows.
pub struct Walk {
    file_system: Arc<dyn FileSystem>,
    start: Option<Result<WalkEntry, WalkError>>,
    path: Vec<u8>,
    levels: Vec<Level>,
    entered: HashSet<Nid>,
    limit: EntryLimit,
}

/// What a [`Walk`] found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WalkEntry {
    /// Where: raw bytes, beginning with the path that the walk began at; below the root `/` it is `/name/name`.
    pub path: Vec<u8>,
    /// How many directories lie between it and where the walk began; 0 is the beginning itself.
    pub depth: usize,
    /// What is there.
    pub attr: Attr,
}

/// What a [`Walk`] could not visit.
#[derive(Clone, Debug)]
pub struct WalkError {
    /// Where: the entry whose inode cannot be read, or the directory that has a fault.
    pub path: Vec<u8>,
    /// Why.
    pub error: Error,
}

struct Level {
    directory: Nid,
    entries: ReadDir,
    path_len: usize,
}

impl Walk {
    pub(crate) fn new(file_system: Arc<dyn FileSystem>, nid: Nid, path: &[u8]) -> Self {
        let mut walk = Self {
            file_system,
            start: None,
            path: path.to_vec(),
            levels: Vec::new(),
            entered: HashSet::new(),
            limit: EntryLimit::default(),
        };
        walk.start = Some(walk.visit(nid));
        walk
    }

    /// Leaves out the content of the directory that came last. Nothing else may have come since.
    pub fn skip_directory(&mut self) {
        self.levels.pop();
    }

    /// Reads the inode at `self.path` and enters it if it is a directory.
    fn visit(&mut self, nid: Nid) -> Result<WalkEntry, WalkError> {
        let failed = |error| WalkError { path: self.path.clone(), error };
        let attr = self.file_system.attr(nid).map_err(failed)?;
        let depth = self.levels.len();
        if attr.file_type == FileType::Directory {
            if !self.entered.insert(nid) {
                return Err(failed(Error::corrupt("directory found in two places", Place::inode(nid))));
            }
            if depth >= DEPTH_MAX {
                return Err(failed(Error::corrupt("directories more than 4096 deep", Place::inode(nid))));
            }
            let entries = ReadDir::new(Arc::clone(&self.file_system), nid);
            self.levels.push(Level { directory: nid, entries, path_len: self.path.len() });
        }
        Ok(WalkEntry { path: self.path.clone(), depth, attr })
    }
}

impl Iterator for Walk {
    type Item = Result<WalkEntry, WalkError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(start) = self.start.take() {
            return Some(start);
        }
        loop {
            let level = self.levels.last_mut()?;
            self.path.truncate(level.path_len);
            match level.entries.next() {
                None => {
                    self.levels.pop();
                }
                Some(Err(error)) => return Some(Err(WalkError { path: self.path.clone(), error })),
                Some(Ok(entry)) => {
                    if let Err(error) = self.limit.take(self.file_system.as_ref(), level.directory) {
                        self.levels.clear();
                        return Some(Err(WalkError { path: self.path.clone(), error }));
                    }
                    if !self.path.ends_with(b"/") {
                        self.path.push(b'/');
                    }
                    self.path.extend_from_slice(&entry.name);
                    return Some(self.visit(entry.nid));
                }
            }
        }
    }
}

impl WalkEntry {
    /// Its last name; empty for the root.
    pub fn name(&self) -> &[u8] {
        self.path.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
    }
}

impl fmt::Display for WalkError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?}: {}", OsStr::from_bytes(&self.path), self.error)
    }
}

impl std::error::Error for WalkError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}
