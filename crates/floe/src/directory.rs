//! Lists one directory.

use std::{collections::VecDeque, ops::ControlFlow, sync::Arc};

use floe_image::{DirectoryCursor, Error, FileSystem, FileType, Nid};

/// The number of entries read from a directory at a time. It bounds the memory for huge directories.
const BATCH_COUNT: usize = 512;

/// One entry of a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirectoryEntry {
    /// The name: raw bytes as stored in the image.
    pub name: Vec<u8>,
    /// The inode.
    pub nid: Nid,
    /// The inode number that `readdir` shows.
    pub inode_number: u64,
    /// The file type in the directory entry.
    pub file_type: FileType,
}

/// Iterates over the entries of one directory, without `.` and `..`, in the order of the image. Ends after an error.
///
/// In a corrupt directory, `.` or `..` may occur more than once; the iterator returns the repetitions like any other
/// name.
pub struct ReadDir {
    file_system: Arc<dyn FileSystem>,
    directory: Nid,
    cursor: DirectoryCursor,
    batch: VecDeque<DirectoryEntry>,
    fault: Option<Error>,
    is_at_end: bool,
    dots: Dots,
}

/// Which of the entries `.` and `..` were already skipped.
#[derive(Clone, Copy, Default)]
struct Dots {
    own: bool,
    parent: bool,
}

impl Dots {
    /// Whether `name` is one of the two and occurs for the first time.
    fn take(&mut self, name: &[u8]) -> bool {
        let was_taken = match name {
            b"." => &mut self.own,
            b".." => &mut self.parent,
            _ => return false,
        };
        !std::mem::replace(was_taken, true)
    }
}

impl ReadDir {
    pub(crate) fn new(file_system: Arc<dyn FileSystem>, directory: Nid) -> Self {
        let cursor = DirectoryCursor::default();
        Self {
            file_system,
            directory,
            cursor,
            batch: VecDeque::new(),
            fault: None,
            is_at_end: false,
            dots: Dots::default(),
        }
    }

    fn fill(&mut self) {
        let (batch, cursor, dots) = (&mut self.batch, &mut self.cursor, &mut self.dots);
        let mut is_cut_off = false;
        let result = self.file_system.read_dir(self.directory, *cursor, &mut |dirent| {
            *cursor = dirent.next;
            if !dots.take(dirent.name) {
                batch.push_back(DirectoryEntry {
                    name: dirent.name.to_vec(),
                    nid: dirent.nid,
                    inode_number: dirent.inode_number,
                    file_type: dirent.file_type,
                });
            }
            is_cut_off = batch.len() >= BATCH_COUNT;
            if is_cut_off { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        self.fault = result.err();
        self.is_at_end = !is_cut_off;
    }
}

impl Iterator for ReadDir {
    type Item = Result<DirectoryEntry, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.batch.is_empty() && !self.is_at_end {
            self.fill();
        }
        match self.batch.pop_front() {
            Some(entry) => Some(Ok(entry)),
            None => self.fault.take().map(Err),
        }
    }
}
