//! The directory into which an image is extracted.

use std::{
    fs::DirBuilder,
    io,
    os::{fd::OwnedFd, unix::fs::DirBuilderExt},
    path::{Path, PathBuf},
};

use rustix::fs::{CWD, Dir, Mode, OFlags, openat};

/// The directory into which an image is extracted.
#[derive(Debug)]
pub enum ExtractTarget {
    /// The directory at a path, which is created if it is missing.
    Path(PathBuf),
    /// An open directory.
    Open {
        /// The directory, or the error of opening it, with which the extraction fails.
        directory: io::Result<OwnedFd>,
        /// Its name in errors.
        path: PathBuf,
    },
}

impl ExtractTarget {
    /// The path of the directory, for messages.
    pub fn path(&self) -> &Path {
        let (Self::Path(path) | Self::Open { path, .. }) = self;
        path
    }

    /// Opens the directory, or creates it. Returns also whether it has entries.
    pub(super) fn open(self) -> io::Result<(OwnedFd, bool)> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = match self {
            Self::Open { directory, .. } => openat(directory?, ".", flags, Mode::empty())?,
            Self::Path(path) => match DirBuilder::new().mode(0o700).create(&path) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => openat(CWD, path, flags, Mode::empty())?,
            },
        };
        let mut has_entries = false;
        for entry in Dir::read_from(&opened)? {
            let entry = entry?;
            has_entries |= !matches!(entry.file_name().to_bytes(), b"." | b"..");
            if has_entries {
                break;
            }
        }
        Ok((opened, has_entries))
    }
}

impl<P: AsRef<Path> + ?Sized> From<&P> for ExtractTarget {
    fn from(path: &P) -> Self {
        Self::Path(path.as_ref().to_owned())
    }
}
