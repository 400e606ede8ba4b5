//! Directory entries.

use crate::{FileType, Nid};

/// The maximum nesting of directories: deeper ones are neither walked nor extracted. A path for `open` has at most 2,048
/// names.
pub const DIRECTORY_DEPTH_MAX: usize = 4096;

/// The violated rule of a directory that is nested deeper than [`DIRECTORY_DEPTH_MAX`].
pub const DIRECTORY_TOO_DEEP: &str = "directories more than 4096 deep";

/// A position between two entries of a directory; 0 is the beginning. Only the format interprets other values.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct DirectoryCursor(pub u64);

/// One entry of a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dirent<'name> {
    /// The name: any bytes except `/` and NUL; never empty.
    pub name: &'name [u8],
    /// The inode that the entry refers to.
    pub nid: Nid,
    /// The inode number that `readdir` reports (`d_ino`).
    pub inode_number: u64,
    /// The file type recorded in the entry.
    pub file_type: FileType,
    /// The cursor that continues after this entry.
    pub next: DirectoryCursor,
}
