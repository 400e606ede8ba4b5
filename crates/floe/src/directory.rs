//! The entries of one directory.

use std::{collections::VecDeque, ops::ControlFlow, sync::Arc};

use floe_image::{DirectoryCursor, Error, FileSystem, FileType, Nid};

/// How many entries are taken from a directory at a time, so that a huge one needs little memory.
const BATCH_COUNT: usize = 512;

/// One entry of a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirectoryEntry {
    /// Its name: raw bytes, as the image has them.
    pub name: Vec<u8>,
    /// The inode it names.
    pub nid: Nid,
    /// The number that `readdir` shows for that inode.
    pub inode_number: u64,
    /// The type that the directory gives for it.
    pub file_type: FileType,
}

/// The entries of one directory, without `.` and `..`, in the order of the image. After an error it ends.
///
/// Only a corrupt image has either of the two again: that one is given like any other name.
pub struct ReadDir {
    file_system: Arc<dyn FileSystem>,
    directory: Nid,
    cursor: DirectoryCursor,
    batch: VecDeque<DirectoryEntry>,
    fault: Option<Error>,
    is_at_end: bool,
    dots: Dots,
}

/// Which of the two entries that every directory has were passed by.
#[derive(Clone, Copy, Default)]
struct Dots {
    own: bool,
    parent: bool,
}

impl Dots {
    /// Whether `name` is one of them, for the first time.
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
