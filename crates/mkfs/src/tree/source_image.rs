//! Open images as sources.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use floe_image::{FileSystem, Nid};

use crate::error::{Error, Result};

/// Reads an open image. `floe` implements it with its own reader.
pub trait ImageReader: Send + Sync {
    /// The inodes, their names, and the holes of files.
    fn file_system(&self) -> &dyn FileSystem;

    /// Fills `output` with the bytes of a file from `offset` on. Returns their number, which is smaller only at the end of the
    /// file. It is called from several threads.
    ///
    /// # Errors
    /// The image is corrupt or cannot be read.
    fn read_at(&self, nid: Nid, offset: u64, output: &mut [u8]) -> floe_image::Result<usize>;
}

/// An open image that is a source of a build.
#[derive(Clone)]
pub struct SourceImage {
    path: Arc<Path>,
    reader: Arc<dyn ImageReader>,
}

impl SourceImage {
    /// The image that `reader` reads. Errors call it `path`.
    pub fn new(path: impl AsRef<Path>, reader: Arc<dyn ImageReader>) -> Self {
        Self { path: path.as_ref().into(), reader }
    }

    /// The path of the image.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of `inner`, for messages.
    pub(crate) fn path_of(&self, inner: &Path) -> PathBuf {
        if inner.as_os_str().is_empty() { self.path.to_path_buf() } else { self.path.join(inner) }
    }

    pub(crate) fn file_system(&self) -> &dyn FileSystem {
        self.reader.file_system()
    }

    /// Fills `output` with the bytes of a file from `offset` on.
    pub(crate) fn read_exact_at(&self, nid: Nid, offset: u64, output: &mut [u8]) -> Result<()> {
        match self.reader.read_at(nid, offset, output) {
            Ok(len) if len == output.len() => Ok(()),
            Ok(_) => Err(self.failed(Path::new(""))(io::Error::from(io::ErrorKind::UnexpectedEof))),
            Err(error) => Err(self.failed(Path::new(""))(error)),
        }
    }

    /// The error that the entry at the path `inner` could not be read.
    pub(crate) fn failed<E>(&self, inner: &Path) -> impl Fn(E) -> Error + use<'_, E>
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let path = self.path_of(inner);
        move |error| Error::source(&path, "read")(io::Error::other(error))
    }
}

impl fmt::Debug for SourceImage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("SourceImage").field(&self.path).finish()
    }
}
