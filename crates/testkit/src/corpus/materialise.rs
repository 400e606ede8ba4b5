//! Unpacks corpus files to plain files on disk.

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

use super::{Corpus, Format, ImageRecord, StoredFile};
use crate::{manifest::sha256_hex, target_dir};

/// An image as plain files.
#[derive(Clone, Debug)]
pub struct Materialised {
    /// The image.
    pub path: PathBuf,
    /// Its format.
    pub format: Format,
    /// The offset of the file system in bytes.
    pub offset: u64,
    /// The extra devices, in the order of the device table.
    pub devices: Vec<PathBuf>,
}

impl Materialised {
    /// An image of one file, from its first byte on.
    pub fn single(path: impl Into<PathBuf>, format: Format) -> Self {
        Self { path: path.into(), format, offset: 0, devices: Vec::new() }
    }
}

impl Corpus {
    /// The image as plain files: those of the corpus itself, or copies that are kept under `target/`.
    ///
    /// # Panics
    /// A file is missing, or does not match the digest in `images.jsonl`.
    pub fn materialise(&self, image: &ImageRecord) -> Materialised {
        Materialised {
            path: self.materialise_file(&image.image),
            format: image.format,
            offset: image.offset,
            devices: image.devices.iter().map(|device| self.materialise_file(device)).collect(),
        }
    }

    /// The bytes of an image.
    ///
    /// # Panics
    /// As for [`Corpus::materialise`].
    pub fn bytes(&self, file: &StoredFile) -> Vec<u8> {
        let bytes = self.plain_bytes(&file.file).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(sha256_hex(&bytes), file.sha256, "{} does not match the digest in images.jsonl", file.file);
        bytes
    }

    fn materialise_file(&self, file: &StoredFile) -> PathBuf {
        if !file.file.ends_with(".zst") {
            self.bytes(file);
            return self.root.join(&file.file);
        }
        keep(&file.sha256, || self.bytes(file))
    }
}

/// The cached file for this SHA-256, created from `bytes` if it is missing.
pub(super) fn keep(sha256: &str, bytes: impl FnOnce() -> Vec<u8>) -> PathBuf {
    let folder = target_dir().join("testkit-images");
    let path = folder.join(sha256);
    if fs::read(&path).is_ok_and(|kept| sha256_hex(&kept) == sha256) {
        return path;
    }
    let written = fs::create_dir_all(&folder).and_then(|()| {
        let mut file = tempfile::NamedTempFile::new_in(&folder)?;
        file.write_all(&bytes())?;
        file.persist(&path)?;
        Ok(())
    });
    written.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    path
}

/// The bytes of a file, decompressed if its name ends in `.zst`.
pub(super) fn read_plain(path: &Path) -> io::Result<Vec<u8>> {
    let bytes = fs::read(path)?;
    if path.extension().is_some_and(|extension| extension == "zst") { zstd::decode_all(&*bytes) } else { Ok(bytes) }
}
