//! How a file or a piece is stored.

use std::ops::Range;

use super::file_split::Repeat;
use crate::{
    error::{Error, Result},
    options::{Fragments, Options},
    tree::content::Content,
};

/// The maximum length in bytes of chunks while they are read, because each is in memory as a whole. If the user asks
/// for longer chunks, contiguous ones are merged.
const CHUNK_LEN_MAX: u32 = 16 << 20;
/// The minimum chunk size, in bytes, of an uncompressed file with holes.
const SPARSE_CHUNK_LEN_MIN: u64 = 64 << 10;
/// The length of a chunk's record in the map of a file, in bytes.
const MAP_RECORD_LEN: u64 = 4;
/// A file with holes is refused if the image would need more than this many bytes for it, and more than this many times
/// the bytes of its data.
const SPARSE_STORED_LEN_MAX: u64 = 16 << 30;
const SPARSE_STORED_FACTOR_MAX: u64 = 1024;
/// The minimum size, in bytes, of a file that is stored in chunks although it could be compressed, because it consists
/// almost entirely of holes: its index, about 4 bytes per block, would be longer than its data.
const COMPRESSED_SPARSE_SIZE_MIN: u64 = 16 << 20;
/// The minimum ratio of such a file's size to its data.
const COMPRESSED_SPARSE_FACTOR: u64 = 1024;

/// Space reserved for the inode, in bytes, so that inline data ends within the inode's block.
const INLINE_MARGIN: usize = 64;

/// The largest length of inline data after an inode.
pub(crate) const fn inline_len_max(block_len: usize) -> usize {
    block_len - INLINE_MARGIN
}

/// How a file is stored.
#[derive(Clone, Copy)]
pub(crate) enum FileMethod {
    /// Uncompressed.
    Flat,
    /// Compressed.
    Compress(TailRule),
    /// In the packed inode.
    Pack,
    /// In chunks.
    Chunk {
        /// The chunk size in bytes.
        chunk_len: u32,
    },
}

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

/// The handling of the end of a file that does not fill a pcluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TailRule {
    /// Stored in blocks. Also the rule for segments that end with an lcluster and are not the last of a file.
    Blocks,
    /// Stored in blocks, and another extent begins in the lcluster in which the segment ends.
    Followed,
    /// Stored after the inode if it is small enough.
    Inline,
    /// Stored in the packed inode.
    Fragment,
}

impl FileMethod {
    /// Decides how a file with this coding is stored.
    pub(crate) fn of(content: &Content, options: &Options, coding: Option<usize>) -> Result<Self> {
        if let Some(chunk_bytes) = options.chunk_bytes {
            let chunk_len = u32::try_from(chunk_bytes).unwrap_or(u32::MAX).min(CHUNK_LEN_MAX);
            return Ok(Self::Chunk { chunk_len });
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

impl From<FileMethod> for StorageMethod {
    fn from(method: FileMethod) -> Self {
        match method {
            FileMethod::Flat => Self::Flat,
            FileMethod::Compress(rule) => Self::Compress(rule),
            FileMethod::Pack => Self::Pack,
            FileMethod::Chunk { chunk_len } => {
                Self::Chunk { chunk_len: usize::try_from(chunk_len).unwrap_or(usize::MAX) }
            }
        }
    }
}

impl TailRule {
    /// The rule for the ends of files.
    pub(crate) fn of_files(options: &Options) -> Self {
        match (options.fragments, options.inline_pclusters) {
            (Fragments::None, true) => Self::Inline,
            (Fragments::None, false) => Self::Blocks,
            _ => Self::Fragment,
        }
    }

    /// The rule for a segment that ends at `end`, before the end of its file.
    pub(crate) fn within_file(end: u64, block_size: u64) -> Self {
        if end.is_multiple_of(block_size) { Self::Blocks } else { Self::Followed }
    }
}

/// The chunk size for a file that is stored in chunks to keep its holes, although the options do not ask for chunks.
/// This applies to files with holes that are not compressed, or whose index would be longer than their data.
fn sparse_chunk_len(content: &Content, options: &Options, coding: Option<usize>) -> Result<Option<u32>> {
    let size = content.size();
    let stored_len_max = match coding {
        None => size.saturating_sub(1),
        Some(_) if size < COMPRESSED_SPARSE_SIZE_MIN => return Ok(None),
        Some(_) => size / COMPRESSED_SPARSE_FACTOR,
    };
    if content.stored_len() > stored_len_max {
        return Ok(None);
    }
    let ranges = content.data_ranges(SPARSE_CHUNK_LEN_MIN.max(options.block_size()))?;
    let Some(chunks) = SparseChunks::smallest(&ranges, size, options.block_size()) else { return Ok(None) };
    let stored_len = chunks.stored_len();
    if stored_len > SPARSE_STORED_LEN_MAX && stored_len / SPARSE_STORED_FACTOR_MAX > content.stored_len() {
        let reason = format!(
            "its data, {} bytes, is spread over {size} bytes: the image would need {stored_len} bytes for it",
            content.stored_len()
        );
        return Err(Error::unfit(content.path(), reason));
    }
    // Only an empty chunk becomes a hole, and the block count does not show whether there is one.
    Ok(u32::try_from(chunks.chunk_len).ok().filter(|_| chunks.data_len < size))
}

/// The space that a file with holes takes in an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct SparseChunks {
    chunk_len: u64,
    /// The length of all chunks with data.
    data_len: u64,
    /// The length of the map.
    map_len: u64,
}

impl SparseChunks {
    /// The chunk size with which an image needs the fewest bytes for a file with these ranges of data.
    fn smallest(ranges: &[Range<u64>], size: u64, block_size: u64) -> Option<Self> {
        let first = SPARSE_CHUNK_LEN_MIN.max(block_size);
        let lens =
            std::iter::successors(Some(first), |len| Some(len * 2)).take_while(|len| *len <= CHUNK_LEN_MAX.into());
        let chunks = lens.map(|chunk_len| {
            let (mut data_len, mut end) = (0, 0);
            for range in ranges {
                let start = (range.start / chunk_len * chunk_len).max(end);
                end = range.end.checked_next_multiple_of(chunk_len).unwrap_or(size).min(size);
                data_len += end.saturating_sub(start);
            }
            // A file without data is one long hole.
            let map_len = if ranges.is_empty() { 0 } else { size.div_ceil(chunk_len).saturating_mul(MAP_RECORD_LEN) };
            Self { chunk_len, data_len, map_len }
        });
        chunks.min_by_key(Self::stored_len)
    }

    fn stored_len(&self) -> u64 {
        self.data_len.saturating_add(self.map_len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_of_sparse_files_keep_images_small() {
        let unit = 64 << 10;
        let page = |offset: u64| offset / unit * unit..offset / unit * unit + unit;
        let pages = |count: u64, size: u64| (0..count).map(|number| page(number * (size / count))).collect::<Vec<_>>();
        for (ranges, size, block_size, chunk_len, stored_len_max) in [
            (vec![], 1 << 62, 4096, 64 << 10, 0),
            (pages(1, 1 << 30), 1 << 30, 4096, 64 << 10, 132 << 10),
            (pages(1, 1 << 40), 1 << 40, 4096, 2 << 20, 4 << 20),
            // 500 pages in 1 TiB.
            (pages(500, 1 << 40), 1 << 40, 4096, 128 << 10, 100 << 20),
            // One byte in 1 PiB; chunks stay short enough for memory.
            (pages(1, 1 << 50), 1 << 50, 4096, 16 << 20, 272 << 20),
            (pages(20_000, 1 << 44), 1 << 44, 4096, 64 << 10, 5 << 29),
            // Data without gaps.
            (std::iter::once(0..1 << 40).collect(), 1 << 44, 4096, 16 << 20, (1 << 40) + (4 << 20)),
            (pages(3, 1 << 20), 1 << 20, 64 << 10, 64 << 10, (3 << 16) + 64),
        ] {
            let found = SparseChunks::smallest(&ranges, size, block_size).expect("chunks");
            assert_eq!(found.chunk_len, chunk_len, "{size} {found:?}");
            assert!(found.stored_len() <= stored_len_max, "{size} {found:?}");
        }
    }
}
