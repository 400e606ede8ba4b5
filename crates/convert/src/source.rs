//! Reads images, wherever they are stored.

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

use floe_remote_cache::Digest;
use sha2::{Digest as _, Sha256};

use crate::{
    document::Descriptor,
    error::{Error, Result},
};

/// An image to convert.
pub(crate) trait Source: Sync {
    /// Reads the document that the image's name stands for, and describes it.
    fn root(&self) -> Result<(Descriptor, Vec<u8>)>;

    /// Reads a manifest of the image.
    fn document(&self, descriptor: &Descriptor) -> Result<Vec<u8>>;

    /// Reads a small blob, such as a configuration.
    fn small_blob(&self, descriptor: &Descriptor) -> Result<Vec<u8>>;

    /// A file with the layer of a manifest, after verification. It is a copy in `scratch`, unless the layer is a file already.
    fn layer(&self, manifest: &Digest, layer: &Descriptor, scratch: &Path) -> Result<LayerFile>;
}

/// A file with a layer.
pub(crate) struct LayerFile {
    pub(crate) path: PathBuf,
    /// Removes the file when it is dropped, if that is a copy.
    pub(crate) copy: Option<tempfile::TempPath>,
}

/// Copies `reader` into a new file of `scratch`, and verifies it.
///
/// # Errors
/// Reading or writing fails, or the bytes are wrong.
pub(crate) fn copied(reader: impl Read, layer: &Descriptor, scratch: &Path) -> Result<LayerFile> {
    let mut copy = tempfile::NamedTempFile::new_in(scratch).map_err(Error::file(scratch))?;
    verify(reader, layer, copy.as_file_mut())?;
    let path = copy.into_temp_path();
    Ok(LayerFile { path: path.to_path_buf(), copy: Some(path) })
}

/// Verifies the bytes of `reader`, and writes them to `output`.
///
/// # Errors
/// Reading or writing fails, or the bytes are wrong.
pub(crate) fn verify(reader: impl Read, layer: &Descriptor, output: impl io::Write) -> Result<()> {
    let (found, len) = copy_hashed(reader.take(layer.size.saturating_add(1)), output)?;
    let expected = layer.digest()?;
    if len != layer.size || found != expected {
        return Err(Error::failed(format!("sha256:{found} is stored in the place of sha256:{expected}")));
    }
    Ok(())
}

/// Copies `reader` to `output`. Returns the digest and the number of bytes.
///
/// # Errors
/// Reading or writing fails.
pub(crate) fn copy_hashed(mut reader: impl Read, output: impl io::Write) -> Result<(Digest, u64)> {
    let mut hashing = Hashing { output, hash: Sha256::new() };
    let len = io::copy(&mut reader, &mut hashing)?;
    Ok((Digest(hashing.hash.finalize().into()), len))
}

/// Verifies the file at `path`, which is used in its place.
///
/// # Errors
/// It cannot be read, or its bytes are wrong.
pub(crate) fn in_place(path: PathBuf, layer: &Descriptor) -> Result<LayerFile> {
    let file = File::open(&path).map_err(Error::file(&path))?;
    verify(file, layer, io::sink())?;
    Ok(LayerFile { path, copy: None })
}

/// Hashes what it writes.
struct Hashing<W> {
    output: W,
    hash: Sha256,
}

impl<W: io::Write> io::Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let len = self.output.write(bytes)?;
        self.hash.update(&bytes[..len]);
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}
