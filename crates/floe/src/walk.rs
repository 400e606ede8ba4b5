//! Walks through a tree, with a limited number of entries.

use std::{collections::HashSet, ffi::OsStr, fmt, os::unix::ffi::OsStrExt, sync::Arc};

use floe_image::{Attr, DIRECTORY_DEPTH_MAX, DIRECTORY_TOO_DEEP, Error, FileSystem, FileType, Nid, Place};

use crate::ReadDir;

/// Iterates over an inode and everything below it, directories before their content, in the order of the image.
///
/// The walk enters each directory once. If it finds the directory again, in itself or elsewhere, it returns an error
/// instead of entering it. The walk ends if it finds more entries than the image has room for ([`EntryLimit`]). After
/// an error, the walk continues with the next entry.
pub struct Walk {
    file_system: Arc<dyn FileSystem>,
    start: Option<Result<WalkEntry, WalkError>>,
    path: Vec<u8>,
    levels: Vec<Level>,
    entered: HashSet<Nid>,
    limit: EntryLimit,
}

/// An entry of a [`Walk`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WalkEntry {
    /// The path: raw bytes, beginning with the path at which the walk started; below the root `/` it is `/name/name`.
    pub path: Vec<u8>,
    /// The number of directories between the start of the walk and the entry; 0 is the start itself.
    pub depth: usize,
    /// The attributes.
    pub attr: Attr,
}

/// An entry that a [`Walk`] could not visit.
#[derive(Clone, Debug)]
pub struct WalkError {
    /// The path of the entry whose inode cannot be read, or of the directory that is faulty.
    pub path: Vec<u8>,
    /// The cause.
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

    /// Skips the content of the directory that was returned last. The caller must not have called `next` since.
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
            if depth >= DIRECTORY_DEPTH_MAX {
                return Err(failed(Error::corrupt(DIRECTORY_TOO_DEEP, Place::inode(nid))));
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
    /// The last name of the path; empty for the root.
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

/// The number of entries allowed in any image. The image's own limit, whose computation reads metadata, applies only
/// above it.
const FREE_COUNT: u64 = 1 << 16;

/// Limits the number of entries that a walk of a tree may return, so that the walk ends even if directories share their
/// content.
#[derive(Clone, Copy, Default, Debug)]
pub struct EntryLimit {
    found: u64,
    max: Option<u64>,
}

impl EntryLimit {
    /// Counts an entry of `directory`.
    ///
    /// # Errors
    /// The walk has returned more entries than the image has room for.
    pub fn take(&mut self, file_system: &dyn FileSystem, directory: Nid) -> Result<(), Error> {
        self.found += 1;
        if self.found > FREE_COUNT && self.found > *self.max.get_or_insert_with(|| file_system.entry_count_max()) {
            let rule = "directories share their content: more entries than the image has room for";
            return Err(Error::corrupt(rule, Place::inode(directory)));
        }
        Ok(())
    }
}
