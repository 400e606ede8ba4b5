//! What is done with a file, or a part of one.

use crate::{
    content::Content,
    error::Result,
    options::{Fragments, Options},
    repeats::Repeat,
    segment::TailRule,
};

/// Chunks are at most so long while they are read, in bytes, each being in memory as a whole. Those asked for that are
/// longer come of it where the parts follow one another.
const CHUNK_LEN_MAX: usize = 16 << 20;
/// A file with holes that is not compressed has chunks of this size in bytes, and at most so many of them.
const SPARSE_CHUNK_LEN_MIN: u64 = 64 << 10;
const SPARSE_CHUNKS_MAX: u64 = 1 << 20;
/// A file that is to be compressed is stored in chunks instead if it has so many bytes, and this many times as many as
/// there is data: its index, about 4 bytes for a block, would be longer.
const COMPRESSED_SPARSE_SIZE_MIN: u64 = 16 << 20;
const COMPRESSED_SPARSE_FACTOR: u64 = 1024;

/// What is done with a piece.
#[derive(Clone, Copy)]
pub(crate) enum Treatment {
    /// It is stored as it is.
    Flat,
    /// It is compressed.
    Compress(TailRule),
    /// It is a part of what was there before; with the last one comes what that is, and the rule for its end.
    Repeat(Option<(Repeat, TailRule)>),
    /// It goes into the packed inode.
    Pack,
    /// It is stored in chunks.
    Chunk {
        /// The size of one in bytes.
        chunk_len: usize,
    },
    /// It is in a hole of a file that is stored in chunks.
    Hole {
        /// The size of one in bytes.
        chunk_len: usize,
    },
}

impl Treatment {
    /// What is done with a file that has this coding.
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

/// The chunk size for a file whose holes stay holes though nobody asked for chunks: one with holes that is not to be
/// compressed, or whose index would be longer than its data if it were.
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
    let chunk_len = (size / SPARSE_CHUNKS_MAX).next_power_of_two().max(SPARSE_CHUNK_LEN_MIN).max(options.block_size());
    // Whether a whole chunk is a hole; that blocks are missing does not tell.
    let data = content.data_ranges(chunk_len)?;
    let data_len: u64 = data.iter().map(|range| range.end - range.start).sum();
    Ok(usize::try_from(chunk_len).ok().filter(|_| data_len < size))
}
