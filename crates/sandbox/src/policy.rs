//! What a confined process may still do.

use std::path::{Path, PathBuf};

use crate::{Calls, Capability};

/// What a confined process may still do. The default is next to nothing: to use what it has open.
#[derive(Debug, Default)]
pub struct Policy {
    /// What may be reached by path until the end.
    pub grants: Vec<Grant>,
    /// What may be reached by path only until the sandbox is sealed.
    pub opening: Vec<Grant>,
    /// Which system calls it needs beside those that every process needs.
    pub calls: Calls,
    /// Which capabilities it keeps once the sandbox is sealed, if it has them.
    pub capabilities: Vec<Capability>,
}

/// A file or a directory that may be reached by path, and what may be done with it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Grant {
    pub(crate) path: PathBuf,
    pub(crate) access: Access,
}

/// What may be done with a file, or with all that is beneath a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Access {
    /// Reading.
    Read,
    /// Writing to what exists.
    Write,
    /// Reading and writing what exists, and nameless files; the ioctls of a device.
    ReadWrite,
    /// Renaming and removing sockets.
    Sockets,
    /// Removing empty directories.
    RemoveDirectories,
    /// Making, changing, linking and removing files of all kinds.
    Tree,
}

impl Policy {
    /// Allows `access` to a path. A path that is not there is passed over: it cannot be reached anyway.
    pub fn allow(&mut self, path: impl Into<PathBuf>, access: Access) {
        self.grants.push(Grant { path: path.into(), access });
    }

    /// Allows `access` to a path until the sandbox is sealed.
    pub fn allow_opening(&mut self, path: impl AsRef<Path>, access: Access) {
        self.opening.push(Grant { path: path.as_ref().to_owned(), access });
    }
}
