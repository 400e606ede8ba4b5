//! The digests of a file.

use std::{
    fs::File,
    io::{self, Read},
    os::unix::fs::FileExt,
};

use floe_remote_cache::{Digest, DigestTable, HashTree, HashTreeBuilder};
use sha2::{Digest as _, Sha256};

/// The digest of a whole file, its digest table and its hash tree.
pub struct FileDigests {
    /// The SHA-256 digest of all bytes.
    pub whole: Digest,
    /// The digests of its parts.
    pub table: DigestTable,
    /// The tree of hashes of its chunks; `None` for a file that needs none.
    pub tree: Option<HashTree>,
}

impl FileDigests {
    /// Computes the digests in one pass, independent of the position of the file.
    ///
    /// # Errors
    /// The file cannot be read, or is longer than 4 TiB.
    pub fn of(file: &File) -> io::Result<Self> {
        let mut reader = HashingReader { file, offset: 0, hash: Sha256::new(), tree: HashTreeBuilder::default() };
        let table = DigestTable::of(&mut reader)?;
        Ok(Self { whole: Digest(reader.hash.finalize().into()), table, tree: reader.tree.finish() })
    }
}

/// Reads a file from its start, and hashes it.
struct HashingReader<'file> {
    file: &'file File,
    offset: u64,
    hash: Sha256,
    tree: HashTreeBuilder,
}

impl Read for HashingReader<'_> {
    fn read(&mut self, output: &mut [u8]) -> io::Result<usize> {
        let len = self.file.read_at(output, self.offset)?;
        self.hash.update(&output[..len]);
        self.tree.update(&output[..len]);
        self.offset += len as u64;
        Ok(len)
    }
}
