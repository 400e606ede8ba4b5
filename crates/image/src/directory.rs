//! Entries of directories.

use crate::{FileType, Nid};

/// A place in a directory between two entries; 0 is the beginning. What the numbers mean is the format's own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct DirectoryCursor(pub u64);

/// One entry of a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dirent<'name> {
    /// The name: any bytes but `/` and NUL, never empty.
    pub name: &'name [u8],
    /// The inode it names.
    pub nid: Nid,
    /// The number that `readdir` shows for that inode (`d_ino`).
    pub inode_number: u64,
    /// The type that the directory gives for it.
    pub file_type: FileType,
    /// Where to go on after this entry.
    pub next: DirectoryCursor,
}
