//! Resolves paths inside an image.

use std::{ffi::OsString, fmt, os::unix::ffi::OsStringExt};

use floe_image::{Error, FileSystem, FileType, Nid};

/// The maximum number of symbolic links in one path, as in Linux.
const LINKS_MAX: u32 = 40;

/// Resolves `path` to an inode. Paths never leave the image: an absolute link begins at its root, and `..` of the root
/// is the root. `follow_last` decides whether a symbolic link at the end of the path is followed.
pub(crate) fn resolve(file_system: &dyn FileSystem, path: &[u8], follow_last: bool) -> Result<Nid, PathError> {
    let root = file_system.root();
    // The directories from the root down to the current one, each with its name.
    let mut chain: Vec<(Nid, Vec<u8>)> = Vec::new();
    // The names that are not resolved yet, the next one last.
    let mut names = names_reversed(path);
    let mut links_count = 0;
    let mut last = FileType::Directory;
    while let Some(name) = names.pop() {
        if last != FileType::Directory {
            return Err(PathError::NotADirectory { path: shown(&chain, b"") });
        }
        match name.as_slice() {
            b"." => continue,
            b".." => {
                chain.pop();
                continue;
            }
            _ => {}
        }
        let directory = chain.last().map_or(root, |(nid, _)| *nid);
        let nid = match file_system.lookup(directory, &name) {
            Ok(Some(nid)) => nid,
            Ok(None) => return Err(PathError::NotFound { path: shown(&chain, &name) }),
            Err(Error::WrongType { .. }) => return Err(PathError::NotADirectory { path: shown(&chain, b"") }),
            Err(error) => return Err(error.into()),
        };
        last = file_system.attr(nid)?.file_type;
        if last == FileType::Symlink && (follow_last || !names.is_empty()) {
            links_count += 1;
            if links_count > LINKS_MAX {
                return Err(PathError::TooManyLinks { path: path.to_vec() });
            }
            let target = file_system.read_link(nid)?;
            if target.starts_with(b"/") {
                chain.clear();
            }
            names.extend(names_reversed(&target));
            last = FileType::Directory;
        } else {
            chain.push((nid, name));
        }
    }
    Ok(chain.last().map_or(root, |(nid, _)| *nid))
}

/// The names of a path, last one first. A slash at the end requires a directory, as `.` does.
fn names_reversed(path: &[u8]) -> Vec<Vec<u8>> {
    let mut names: Vec<Vec<u8>> = Vec::new();
    if path.ends_with(b"/") {
        names.push(b".".to_vec());
    }
    names.extend(path.rsplit(|byte| *byte == b'/').filter(|name| !name.is_empty()).map(<[u8]>::to_vec));
    names
}

fn shown(chain: &[(Nid, Vec<u8>)], name: &[u8]) -> Vec<u8> {
    let mut path = Vec::new();
    for part in chain.iter().map(|(_, name)| name.as_slice()).chain(Some(name)).filter(|part| !part.is_empty()) {
        path.push(b'/');
        path.extend_from_slice(part);
    }
    path
}

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
