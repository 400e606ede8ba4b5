//! The xattrs of existing files.

use std::path::Path;

use rustix::io::{Errno, Result};

/// The longest list of names and the longest value that the kernel has, in bytes.
const LEN_MAX: usize = 1 << 16;

/// The names of the xattrs of the file at `path`. A symbolic link at its end is not followed.
pub(crate) fn names_at(path: &Path) -> Result<Vec<Box<[u8]>>> {
    let names = grown(|buffer| rustix::fs::llistxattr(path, buffer))?;
    Ok(names.split(|byte| *byte == 0).filter(|name| !name.is_empty()).map(Into::into).collect())
}

/// The value of an xattr of the file at `path`; `None` if it was removed meanwhile, or may be listed but not read.
pub(crate) fn value_at(path: &Path, name: &[u8]) -> Result<Option<Box<[u8]>>> {
    match grown(|buffer| rustix::fs::lgetxattr(path, name, buffer)) {
        Ok(value) => Ok(Some(value.into())),
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Calls `read` with larger and larger buffers until one is large enough.
fn grown(mut read: impl FnMut(&mut [u8]) -> Result<usize>) -> Result<Vec<u8>> {
    let mut buffer = vec![0; 256];
    loop {
        match read(&mut buffer) {
            Ok(len) => {
                buffer.truncate(len);
                return Ok(buffer);
            }
            Err(Errno::RANGE) if buffer.len() < LEN_MAX => buffer.resize(buffer.len() * 4, 0),
            Err(error) => return Err(error),
        }
    }
}
