//! Changes to a tree after its sources were listed.

use std::{fs::File, path::PathBuf, sync::Arc};

use floe_image::{DeviceNumber, FileType};

use super::{
    file_contexts::FileContexts,
    fs_config::{FsConfig, trimmed},
};

/// Changes to a tree after its sources were listed.
#[derive(Clone, Debug, Default)]
pub struct TreeChanges {
    /// The directory of the sources that becomes the root, by its path.
    pub root_directory: Option<Vec<u8>>,
    /// Whether symbolic links into that directory, whose targets begin with its path, get targets without it.
    pub retargets_links: bool,
    /// Attributes of the root.
    pub root: RootAttributes,
    /// Entries to add or to change, in this order.
    pub pseudo_files: Vec<PseudoFile>,
    /// The priorities of files, and of the files below directories: paths within the image without a leading slash. Files
    /// with higher priorities are stored first; the default is 0. Only SquashFS images have them.
    pub priorities: Vec<(PathBuf, i16)>,
    /// SELinux labels of all files. They replace those of the sources.
    pub file_contexts: Option<FileContexts>,
    /// Owners, modes and capabilities of all files.
    pub fs_config: Option<FsConfig>,
    /// The future mountpoint of the image, with which paths in these rules begin.
    pub mount_point: Vec<u8>,
}

impl TreeChanges {
    /// The path of the root in rules, without a slash at its end: empty if the image has no other mountpoint than `/`.
    pub(crate) fn root_path(&self) -> Vec<u8> {
        let mount_point = trimmed(&self.mount_point);
        if mount_point.is_empty() { Vec::new() } else { [b"/", mount_point].concat() }
    }
}

/// Attributes that replace those of the root.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RootAttributes {
    /// The twelve permission bits.
    pub permissions: Option<u16>,
    /// The owner.
    pub uid: Option<u32>,
    /// The group.
    pub gid: Option<u32>,
    /// The modification time in seconds since 1970.
    pub modified: Option<i64>,
}

/// The attributes of directories that archives imply, but have no members for. The root is one of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ImpliedDirectories {
    /// The twelve permission bits.
    pub permissions: u16,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The modification time in seconds since 1970; `None` is that of the first member below.
    pub modified: Option<i64>,
}

impl Default for ImpliedDirectories {
    fn default() -> Self {
        Self { permissions: 0o755, uid: 0, gid: 0, modified: None }
    }
}

/// An entry to add or to change.
#[derive(Clone, Debug)]
pub struct PseudoFile {
    /// Its path within the image.
    pub path: Vec<u8>,
    /// The action.
    pub action: PseudoAction,
}

/// What to do with an entry.
#[derive(Clone, Debug)]
pub enum PseudoAction {
    /// Add it. If the path exists, it stays as it is, and the summary has a warning.
    Add(PseudoBody, PseudoAttributes),
    /// Change its attributes. If the path does not exist, the summary has a warning.
    Modify(PseudoAttributes),
    /// Set an extended attribute.
    SetXattr {
        /// The full name.
        name: Vec<u8>,
        /// The value.
        value: Vec<u8>,
    },
    /// Add a hard link to the entry at this path within the image.
    Link(Vec<u8>),
}

/// The attributes of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PseudoAttributes {
    /// The twelve permission bits.
    pub permissions: u16,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The modification time in seconds since 1970; `None` keeps that of an existing entry, and is 1970 otherwise.
    pub modified: Option<i64>,
}

/// The type of an added entry, with its data.
#[derive(Clone, Debug)]
pub enum PseudoBody {
    /// An empty directory.
    Directory,
    /// A regular file with the content of this one, which must not change.
    File(Arc<File>),
    /// A symbolic link with this target.
    Symlink(Vec<u8>),
    /// A device, a named pipe or a socket.
    Special(FileType, DeviceNumber),
}
