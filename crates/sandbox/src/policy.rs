//! The rights of a confined process.

use std::{
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use crate::{Calls, Capability};

/// The rights of a confined process. The default permits little more than the use of open files.
#[derive(Debug, Default)]
pub struct Policy {
    /// The directory of an extraction: files of all types can be created, changed, linked and removed beneath it. If the process
    /// has the right to mount, everything outside becomes read-only for it, and devices beneath cannot be opened.
    pub tree: Option<OwnedFd>,
    /// Paths that stay accessible until the end.
    pub grants: Vec<Grant>,
    /// Paths that are accessible only until the sandbox is sealed.
    pub opening: Vec<Grant>,
    /// System calls beyond the basic set.
    pub calls: Calls,
    /// Capabilities that the process keeps after sealing, if it has them.
    pub capabilities: Vec<Capability>,
}

/// A file or directory and the access to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Grant {
    pub(crate) path: PathBuf,
    pub(crate) access: Access,
}

/// Access to a file, or to everything beneath a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Access {
    /// Read.
    Read,
    /// Write to existing files.
    Write,
    /// Read and write existing files, and create unnamed ones; ioctls of devices.
    ReadWrite,
    /// Rename and remove sockets.
    Sockets,
    /// Create, read, write, rename and remove regular files.
    Files,
}

impl Policy {
    /// Allows `access` to a path. Ignores missing paths: they cannot be accessed anyway.
    pub fn allow(&mut self, path: impl Into<PathBuf>, access: Access) {
        self.grants.push(Grant { path: path.into(), access });
    }

    /// Allows `access` to a path until the sandbox is sealed.
    pub fn allow_opening(&mut self, path: impl AsRef<Path>, access: Access) {
        self.opening.push(Grant { path: path.as_ref().to_owned(), access });
    }
}
