//! How a file or a piece is stored.

use crate::{
    content::Content,
    error::Result,
    options::{Fragments, Options},
    repeats::Repeat,
    segment::TailRule,
};

/// The maximum length in bytes of chunks while they are read, because each is in memory as a whole. If the user asks
/// for longer chunks, contiguous ones are merged.
const CHUNK_LEN_MAX: usize = 16 << 20;
/// The minimum chunk size, in bytes, of an uncompressed file with holes.
const SPARSE_CHUNK_LEN_MIN: u64 = 64 << 10;
/// The maximum number of chunks of such a file, as long as chunks can grow.
const SPARSE_CHUNKS_MAX: u64 = 1 << 20;
/// The minimum size, in bytes, of a file that is stored in chunks although it could be compressed, because it consists
/// almost entirely of holes: its index, about 4 bytes per block, would be longer than its data.
const COMPRESSED_SPARSE_SIZE_MIN: u64 = 16 << 20;
/// The minimum ratio of such a file's size to its data.
const COMPRESSED_SPARSE_FACTOR: u64 = 1024;
/// log2 of the most blocks in a chunk: the format has five bits for this number.
const CHUNK_BLOCKS_LOG2_MAX: u32 = 31;

/// How a piece is stored.
#[derive(Clone, Copy)]
pub(crate) enum StorageMethod {
    /// Uncompressed.
    Flat,
    /// Compressed.
    Compress(TailRule),
    /// As part of a repeat; the last piece carries the repeat and the rule for its end.
    Repeat(Option<(Repeat, TailRule)>),
    /// In the packed inode.
    Pack,
    /// In chunks.
    Chunk {
        /// The chunk size in bytes.
        chunk_len: usize,
    },
    /// As a hole of a file that is stored in chunks.
    Hole {
        /// The chunk size in bytes.
        chunk_len: usize,
    },
}

impl StorageMethod {
    /// Decides how a file with this coding is stored.
    pub(crate) fn of(content: &Content, options: &Options, coding: Option<usize>) -> Result<Self> {
        if let Some(chunk_bytes) = options.chunk_bytes {
            return Ok(Self::Chunk {
                chunk_len: usize::try_from(chunk_bytes).unwrap_or(usize::MAX).min(CHUNK_LEN_MAX),
            });
        }
        if let Some(chunk_len) = sparse_chunk_len(content, options, coding)? {
            return Ok(Self::Chunk { chunk_len });
        }
        Ok(match (coding, options.fragments) {
            (None, _) => Self::Flat,
            (_, Fragments::All) => Self::Pack,
            (_, _) => Self::Compress(TailRule::of_files(options)),
        })
    }
}

/// The chunk size for a file that is stored in chunks to keep its holes, although the options do not ask for chunks.
/// This applies to files with holes that are not compressed, or whose index would be longer than their data.
fn sparse_chunk_len(content: &Content, options: &Options, coding: Option<usize>) -> Result<Option<usize>> {
    let size = content.size();
    let stored_len_max = match coding {
        None => size.saturating_sub(1),
        Some(_) if size < COMPRESSED_SPARSE_SIZE_MIN => return Ok(None),
        Some(_) => size / COMPRESSED_SPARSE_FACTOR,
    };
    if content.stored_len() > stored_len_max {
        return Ok(None);
    }
    let chunk_len = hole_chunk_len(size, options.block_size());
    // Only an empty chunk becomes a hole, and the block count does not show whether there is one.
    let data = content.data_ranges(chunk_len)?;
    let data_len: u64 = data.iter().map(|range| range.end - range.start).sum();
    Ok(usize::try_from(chunk_len).ok().filter(|_| data_len < size))
}

/// The chunk size for a file of this size with holes.
fn hole_chunk_len(size: u64, block_size: u64) -> u64 {
    let wanted = (size / SPARSE_CHUNKS_MAX).next_power_of_two();
    wanted.max(SPARSE_CHUNK_LEN_MIN).max(block_size).min(block_size << CHUNK_BLOCKS_LOG2_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_of_huge_files_have_a_size_that_the_format_has() {
        for (size, block_size, expected) in [
            (0, 512, 64 << 10),
            (1 << 40, 4096, 1 << 20),
            (1 << 60, 512, 1 << 40),
            (1 << 60, 4096, 1 << 40),
            ((1 << 60) + (1 << 20), 512, 1 << 40),
            (i64::MAX as u64, 512, 1 << 40),
            (i64::MAX as u64, 4096, 1 << 43),
        ] {
            assert_eq!(hole_chunk_len(size, block_size), expected, "{size} {block_size}");
        }
    }
}
