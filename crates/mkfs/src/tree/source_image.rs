//! Open images as sources.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use floe_image::{ByteRange, DeviceId, ExtentData, FileSystem, Nid};

use super::run::Run;
use crate::error::{Error, Result};

/// The number of bytes of a file that one step maps.
const MAP_LEN: u64 = 64 << 20;

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

    /// log2 of the block size.
    pub fn block_size_log2(&self) -> u8 {
        u8::try_from(self.file_system().info().block_size.max(1).ilog2()).unwrap_or(u8::MAX)
    }

    /// The UUID of the volume, if it has one.
    pub fn uuid(&self) -> Option<[u8; 16]> {
        self.file_system().info().uuid
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

    /// Where the image has the data of a file, if it is stored as it is, in blocks.
    pub(crate) fn runs(&self, nid: Nid, size: u64, block_size: u64) -> Result<Vec<Run>> {
        let unfit = |reason: &str| Error::unfit(self.path(), format!("inode {nid}: {reason}"));
        let (mut runs, mut extents, mut at): (Vec<Run>, _, _) = (Vec::new(), Vec::new(), 0);
        while at < size {
            extents.clear();
            let range = ByteRange::new(at, MAP_LEN.min(size - at));
            self.file_system().map(nid, range, &mut extents).map_err(self.failed(Path::new("")))?;
            for extent in &extents {
                let part = extent.range.intersection(range);
                let skip = part.offset().saturating_sub(extent.range.offset());
                let position = match extent.data {
                    ExtentData::Hole => continue,
                    ExtentData::Plain { device: DeviceId(0), offset } => offset.saturating_add(skip),
                    ExtentData::Plain { .. } => return Err(unfit("its data is on an extra device of the image")),
                    ExtentData::Encoded { .. } => {
                        return Err(unfit("it is compressed; only plain blocks can be on an extra device"));
                    }
                };
                if !position.is_multiple_of(block_size) {
                    return Err(unfit(
                        "its end is stored next to its inode; build the image with -Enoinline_data, or store all data",
                    ));
                }
                match runs.last_mut() {
                    Some(last) if last.offset + last.len == part.offset() && last.position + last.len == position => {
                        last.len += part.len();
                    }
                    _ => runs.push(Run { offset: part.offset(), len: part.len(), position }),
                }
            }
            at = range.end();
        }
        Ok(runs)
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
