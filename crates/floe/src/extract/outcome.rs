//! What an extraction reports: its summary, what it left out, and what failed.

use std::{fmt, io};

use crate::{Error, FileType};

/// The results of an extraction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ExtractSummary {
    /// Created regular files.
    pub files: u64,
    /// Directories that were created, or that existed and got their attributes.
    pub directories: u64,
    /// Created symbolic links.
    pub symlinks: u64,
    /// Created devices.
    pub devices: u64,
    /// Created named pipes.
    pub fifos: u64,
    /// Created sockets.
    pub sockets: u64,
    /// Hard links: further names of created files.
    pub hard_links: u64,
    /// Files that are copies, because the target cannot have the hard links. They are counted by their type too.
    pub hard_links_copied: u64,
    /// Bytes written to files.
    pub bytes: u64,
    /// Entries that are missing or incomplete.
    pub failures: u64,
    /// Entries whose owner this user may not set.
    pub owners_denied: u64,
    /// Devices that this user may not create.
    pub devices_denied: u64,
    /// Entries whose mode this user may not set.
    pub modes_denied: u64,
    /// Entries whose time this user may not set.
    pub times_denied: u64,
    /// Extended attributes that this user may not set, or that the target file system does not support.
    pub xattrs_denied: u64,
}

impl ExtractSummary {
    /// The number of entries and attributes that were omitted because this user lacks a privilege or the target file
    /// system lacks support.
    pub fn denied(&self) -> u64 {
        self.owners_denied + self.devices_denied + self.modes_denied + self.times_denied + self.xattrs_denied
    }
}

/// A part of an entry that was left out, because this user lacks a privilege or the target file system lacks support.
#[derive(Debug)]
pub struct ExtractOmission {
    /// The part.
    pub part: ExtractPart,
    /// The error of the operating system.
    pub error: io::Error,
}

/// A part of an entry that can be left out.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ExtractPart {
    /// All of it; only devices are left out as a whole.
    Entry,
    /// Its owner and group.
    Owner,
    /// Its mode.
    Mode,
    /// Its time.
    Time,
    /// The extended attribute with this name.
    Xattr(Vec<u8>),
    /// Its hard link to another name of the same inode: the entry is a copy.
    HardLink,
}

/// An entry that is missing or incomplete in the target. The extraction continues.
#[derive(Debug)]
pub struct ExtractWarning {
    /// The path in the image.
    pub path: Vec<u8>,
    /// The cause.
    pub cause: ExtractWarningCause,
}

/// The cause of an [`ExtractWarning`].
#[derive(Debug)]
#[non_exhaustive]
pub enum ExtractWarningCause {
    /// The image is corrupt or cannot be read.
    Image(Error),
    /// The target cannot be written: the failed action, and the error.
    Target(ExtractAction, io::Error),
    /// The image breaks a rule that keeps extraction safe.
    Refused(&'static str),
}

/// An action in the target directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ExtractAction {
    /// Creates an entry of this type.
    Create(FileType),
    /// Creates a further name of a file.
    HardLink,
    /// Opens a directory again.
    Reopen,
    /// Writes data.
    Write,
    /// Sets the size of a file.
    Resize,
    /// Sets owner and group.
    Owner,
    /// Sets the mode.
    Mode,
    /// Sets the time.
    Time,
    /// Sets an extended attribute.
    Xattr,
    /// Removes an incomplete file.
    Remove,
}

impl fmt::Display for ExtractAction {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Create(FileType::Regular) => "cannot create the file",
            Self::Create(FileType::Directory) => "cannot create the directory",
            Self::Create(FileType::Symlink) => "cannot create the symbolic link",
            Self::Create(_) => "cannot create the special file",
            Self::HardLink => "cannot create the hard link",
            Self::Reopen => "cannot reopen the directory",
            Self::Write => "cannot write",
            Self::Resize => "cannot set the size of the file",
            Self::Owner => "cannot set the owner",
            Self::Mode => "cannot set the mode",
            Self::Time => "cannot set the time",
            Self::Xattr => "cannot set an extended attribute",
            Self::Remove => "cannot remove the incomplete file",
        })
    }
}

impl fmt::Display for ExtractWarningCause {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Image(error) => error.fmt(formatter),
            Self::Target(action, error) => write!(formatter, "{action}: {error}"),
            Self::Refused(rule) => write!(formatter, "refused: {rule}"),
        }
    }
}
