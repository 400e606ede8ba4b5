//! Kept images: the metadata of a virtual image in a file, so that the next mount renders nothing.
//!
//! A kept image is a sparse file that the kernel mounts in place of the rendered one. It has the metadata that names lead to at
//! the same addresses and with the same bytes, so inode numbers and file handles do not depend on whether an image was kept. File
//! data is not in it: the superblock maps the addresses of small files to a second extra device, on which Floe serves them. An
//! index leads from these addresses back to files.
//!
//! | bytes | what |
//! | --- | --- |
//! | block 0 | the superblock with both devices |
//! | block 1 | the header, for Floe alone: version, identity of the original, lengths, checksums |
//! | from block 2 on | the index: 16 bytes for each run of file data |
//! | from block 0x70000000 on | directories and long symbolic links that do not fit behind their inodes |
//! | from block 0x7ffff000 on | the metadata area, as in the virtual image |
//!
//! The kernel never reads blocks 1 and 2, because these addresses belong to the device. Nothing is synced: a checksum covers all
//! blocks that are not zero, and a file that does not match it is not used.

mod block_set;
mod checksum;
mod header;
mod writing;

use std::{fs::File, io, os::unix::fs::FileExt};

use self::{
    checksum::Checksum,
    header::{Header, INDEX_START, RUN_BYTES},
};
pub use self::{
    header::Identity,
    writing::{NotKept, Pace, keep},
};
use crate::{
    addresses::{Addresses, KeptRegion, KeptRun},
    geometry::{BLOCK_BYTES, KEPT_DATA_BLOCK, KEPT_HEADER_BLOCK},
};

/// The number of runs that are read at a time.
const RUNS_STEP: usize = 1 << 14;

/// A kept image whose content was verified.
#[derive(Debug)]
pub struct KeptImage {
    file: File,
    header: Header,
}

impl KeptImage {
    /// Reads all of `file`, and compares it with the checksums that were stored with it.
    ///
    /// # Errors
    /// The file is not a complete kept image of the original with this identity, or cannot be read.
    pub fn verify(file: File, identity: &Identity) -> io::Result<Self> {
        let refused = |reason| io::Error::new(io::ErrorKind::InvalidData, reason);
        let mut block = vec![0; BLOCK_BYTES as usize];
        file.read_exact_at(&mut block, KEPT_HEADER_BLOCK * BLOCK_BYTES)?;
        let header = Header::from_bytes(&block).ok_or_else(|| refused("it is not a complete kept image"))?;
        if header.identity != *identity {
            return Err(refused("it belongs to another image"));
        }
        if file.metadata()?.len() != header.len {
            return Err(refused("its length is wrong"));
        }
        if Checksum::of(&file, header.checksum.block_count)? != header.checksum {
            return Err(refused("its checksum is wrong"));
        }
        Ok(Self { file, header })
    }

    /// The file that the kernel mounts.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The number of blocks on the device with the data of small files.
    pub(crate) fn data_block_count(&self) -> u32 {
        self.header.image_free.saturating_sub(KEPT_DATA_BLOCK)
    }

    /// Whether the image has this superblock.
    pub(crate) fn has_superblock(&self, expected: &[u8]) -> io::Result<bool> {
        let mut bytes = vec![0; expected.len()];
        self.file.read_exact_at(&mut bytes, 0)?;
        Ok(bytes == expected)
    }

    /// The addresses of file data.
    ///
    /// # Errors
    /// The file cannot be read, or has changed.
    pub(crate) fn addresses(&self) -> io::Result<Addresses> {
        let Header { image_runs, image_free, large_runs, large_free, .. } = self.header;
        let image = KeptRegion { runs: self.runs(0, image_runs)?, free: image_free };
        let large = KeptRegion { runs: self.runs(image_runs, large_runs)?, free: large_free };
        Addresses::of_kept(&image, &large)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the index of the kept image is wrong"))
    }

    fn runs(&self, first: u64, count: u64) -> io::Result<Vec<KeptRun>> {
        let mut runs = Vec::new();
        let mut bytes = vec![0; RUNS_STEP * RUN_BYTES];
        let end = first + count;
        let mut position = first;
        while position < end {
            let step = (end - position).min(RUNS_STEP as u64);
            let part = bytes.get_mut(..step as usize * RUN_BYTES).unwrap_or_default();
            self.file.read_exact_at(part, INDEX_START + position * RUN_BYTES as u64)?;
            runs.extend(part.chunks_exact(RUN_BYTES).filter_map(|bytes| header::run_of_bytes(bytes.try_into().ok()?)));
            position += step;
        }
        Ok(runs)
    }
}
