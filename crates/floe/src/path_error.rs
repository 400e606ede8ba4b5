//! Errors of path lookups in an image.

use std::{ffi::OsString, fmt, os::unix::ffi::OsStringExt};

use floe_image::Error;

/// Why a path in an image was not found. Paths are raw bytes as stored in the image.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum PathError {
    /// The path does not exist.
    NotFound {
        /// The path up to and including the first name that does not exist.
        path: Vec<u8>,
    },
    /// The path continues after an inode that is not a directory.
    NotADirectory {
        /// The part of the path that is not a directory.
        path: Vec<u8>,
    },
    /// Symbolic links form a loop, or there are too many.
    TooManyLinks {
        /// The requested path.
        path: Vec<u8>,
    },
    /// The image is corrupt or cannot be read.
    Image(Error),
}

impl From<Error> for PathError {
    fn from(error: Error) -> Self {
        Self::Image(error)
    }
}

impl fmt::Display for PathError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |path: &[u8]| format!("{:?}", OsString::from_vec(path.to_vec()));
        match self {
            Self::NotFound { path } => write!(formatter, "{}: no such file or directory in the image", shown(path)),
            Self::NotADirectory { path } => write!(formatter, "{}: not a directory", shown(path)),
            Self::TooManyLinks { path } => write!(formatter, "{}: too many levels of symbolic links", shown(path)),
            Self::Image(error) => error.fmt(formatter),
        }
    }
}

impl std::error::Error for PathError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Image(error) => Some(error),
            _ => None,
        }
    }
}
