//! The checksum of a kept image.

use std::{fs::File, io, os::unix::fs::FileExt};

use rustix::{fs::SeekFrom, io::Errno};
use xxhash_rust::xxh64::Xxh64;

use crate::geometry::{BLOCK_BYTES, KEPT_HEADER_BLOCK};

/// The number of bytes that are read at a time.
const STEP_BYTES: u64 = 1 << 20;

/// How many times the expected number of blocks may be allocated in the file: file systems allocate some more, but one
/// that does not know holes has no end.
const ALLOCATED_FACTOR_MAX: u64 = 4;

/// The number of blocks that may be allocated in any file.
const ALLOCATED_BLOCKS_MIN: u64 = 1 << 14;

const ZEROS: [u8; BLOCK_BYTES as usize] = [0; BLOCK_BYTES as usize];

/// The checksum of all blocks of a file that are not zero, with their numbers, apart from the header's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Checksum {
    pub(super) block_count: u64,
    pub(super) xxh64: u64,
}

impl Checksum {
    /// Reads a file that should have `block_count` blocks.
    ///
    /// # Errors
    /// It cannot be read, or has far more blocks.
    pub(super) fn of(file: &File, block_count: u64) -> io::Result<Self> {
        let mut budget = block_count.saturating_mul(ALLOCATED_FACTOR_MAX).max(ALLOCATED_BLOCKS_MIN);
        let (mut sum, mut hash) = (Self::default(), Xxh64::new(0));
        let mut bytes = vec![0; STEP_BYTES as usize];
        let mut position = 0;
        while let Some((mut start, end)) = next_data(file, position)? {
            while start < end {
                let part = bytes.get_mut(..(end - start).min(STEP_BYTES) as usize).unwrap_or_default();
                file.read_exact_at(part, start)?;
                for (block, number) in part.chunks(BLOCK_BYTES as usize).zip(start / BLOCK_BYTES..) {
                    budget = budget.checked_sub(1).ok_or_else(too_large)?;
                    if number != KEPT_HEADER_BLOCK && block != ZEROS.get(..block.len()).unwrap_or_default() {
                        hash.update(&number.to_le_bytes());
                        hash.update(block);
                        sum.block_count += 1;
                    }
                }
                start += part.len() as u64;
            }
            position = end;
        }
        sum.xxh64 = hash.digest();
        Ok(sum)
    }
}

fn too_large() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "it has more blocks than it should have")
}

/// The next range of whole blocks from `position` on, a block boundary, that is not a hole.
fn next_data(file: &File, position: u64) -> io::Result<Option<(u64, u64)>> {
    let start = match rustix::fs::seek(file, SeekFrom::Data(position)) {
        Err(Errno::NXIO) => return Ok(None),
        start => start? / BLOCK_BYTES * BLOCK_BYTES,
    };
    let end = rustix::fs::seek(file, SeekFrom::Hole(start.max(position)))?;
    let len = file.metadata()?.len();
    Ok(Some((start, end.next_multiple_of(BLOCK_BYTES).min(len))))
}
