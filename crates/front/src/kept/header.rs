//! The header of a kept image, and the runs of its index.

use xxhash_rust::xxh64::xxh64;

use super::checksum::Checksum;
use crate::{
    addresses::KeptRun,
    geometry::{BLOCK_BYTES, KEPT_HEADER_BLOCK},
};

/// The offset of the index.
pub(super) const INDEX_START: u64 = (KEPT_HEADER_BLOCK + 1) * BLOCK_BYTES;

/// The size of a run in the index.
pub(super) const RUN_BYTES: usize = 16;

const MAGIC: [u8; 8] = *b"floekept";

/// The version of this format and of all that the crate renders. Kept images of other versions are not used.
const VERSION: u64 = 1;

/// Identifies an original, and the options that its rendering depends on: a digest.
pub type Identity = [u8; 32];

/// The header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Header {
    pub(super) identity: Identity,
    /// The length of the file.
    pub(super) len: u64,
    pub(super) checksum: Checksum,
    /// The number of runs of the data of small files; the index begins with them.
    pub(super) image_runs: u64,
    /// The number of runs of the data of large files, which follow.
    pub(super) large_runs: u64,
    /// The first block of each that is free.
    pub(super) image_free: u32,
    pub(super) large_free: u32,
}

impl Header {
    /// The block with the header.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = [MAGIC.as_slice(), &VERSION.to_le_bytes(), &self.identity].concat();
        let Checksum { block_count, xxh64: data_sum } = self.checksum;
        let free = u64::from(self.large_free) << 32 | u64::from(self.image_free);
        for number in [self.len, block_count, data_sum, self.image_runs, self.large_runs, free] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(xxh64(&bytes, 0).to_le_bytes());
        bytes.resize(BLOCK_BYTES as usize, 0);
        bytes
    }

    /// The header in this block; `None` if there is none of this version.
    pub(super) fn from_bytes(block: &[u8]) -> Option<Self> {
        let (numbers_start, sum_start) = (MAGIC.len() + 8 + size_of::<Identity>(), MAGIC.len() + 8 + 32 + 6 * 8);
        let number = |at: usize| Some(u64::from_le_bytes(block.get(at..at + 8)?.try_into().ok()?));
        let nth = |index: usize| number(numbers_start + index * 8);
        if !block.starts_with(&MAGIC)
            || number(MAGIC.len())? != VERSION
            || number(sum_start)? != xxh64(block.get(..sum_start)?, 0)
        {
            return None;
        }
        let free = nth(5)?;
        Some(Self {
            identity: block.get(MAGIC.len() + 8..numbers_start)?.try_into().ok()?,
            len: nth(0)?,
            checksum: Checksum { block_count: nth(1)?, xxh64: nth(2)? },
            image_runs: nth(3)?,
            large_runs: nth(4)?,
            image_free: (free & u64::from(u32::MAX)) as u32,
            large_free: (free >> 32) as u32,
        })
    }
}

/// A run in the form of the index.
pub(super) fn run_to_bytes(run: &KeptRun) -> [u8; RUN_BYTES] {
    let mut bytes = [0; RUN_BYTES];
    let numbers = run.start.to_le_bytes().into_iter().chain(run.item.to_le_bytes());
    for (byte, given) in bytes.iter_mut().zip(numbers.chain(run.metadata_block.to_le_bytes())) {
        *byte = given;
    }
    bytes
}

/// The run with these bytes.
pub(super) fn run_of_bytes(bytes: &[u8; RUN_BYTES]) -> Option<KeptRun> {
    let (start, rest) = bytes.split_first_chunk()?;
    let (item, rest) = rest.split_first_chunk()?;
    let (metadata_block, _) = rest.split_first_chunk()?;
    let (start, item) = (u32::from_le_bytes(*start), u32::from_le_bytes(*item));
    Some(KeptRun { start, item, metadata_block: u64::from_le_bytes(*metadata_block) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_and_runs_are_read_as_they_were_written() {
        let header = Header {
            identity: [7; 32],
            len: 1 << 43,
            checksum: Checksum { block_count: 9, xxh64: u64::MAX },
            image_runs: 5,
            large_runs: 6,
            image_free: 256,
            large_free: u32::MAX,
        };
        let bytes = header.to_bytes();
        assert_eq!(Header::from_bytes(&bytes), Some(header));
        for at in 0..104 {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert_eq!(Header::from_bytes(&changed), None, "{at}");
        }
        let run = KeptRun { start: 1, item: 2, metadata_block: 1 << 40 };
        assert_eq!(run_of_bytes(&run_to_bytes(&run)), Some(run));
    }
}
