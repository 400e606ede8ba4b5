//! Pieces of files, which threads read and compress independently.

use std::iter;

use sha2::{Digest, Sha256};
use xxhash_rust::xxh64::xxh64;

use super::{
    Compressors,
    segment::{CompressedSegment, Tail},
};
use crate::{
    content::{
        FileToStore,
        file_split::{FileSplit, Repeat},
        storage_method::{StorageMethod, TailRule},
    },
    error::Result,
    memory::{copied, lengthen},
    options::Options,
};

/// The maximum length of uncompressed pieces for the packed inode, in bytes.
const PACK_LEN: usize = 4 << 20;

/// The maximum length of pieces in holes in bytes, which keeps progress visible.
const HOLE_LEN_MAX: u64 = 1 << 30;
/// The number of such pieces above which they are longer.
const HOLE_PIECES_MAX: u64 = 1 << 16;
/// How files are split into segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SegmentLengths {
    /// Into segments of equal length.
    Even,
    /// Into decreasing lengths, down to half of that, so that all threads stay busy until the end.
    Tapered,
}

/// With [`SegmentLengths::Tapered`], a segment takes one part in this many of the rest.
const TAPER_PARTS: u64 = 3;

/// A part of a file that is processed independently.
pub(crate) struct Piece<'a> {
    pub(crate) len: usize,
    file: FileToStore<'a>,
    offset: u64,
    is_cut: bool,
    method: StorageMethod,
}

/// A piece after reading and compression.
pub(crate) struct PieceOutput<'a> {
    pub(crate) file: FileToStore<'a>,
    /// The offset in the file.
    pub(crate) offset: u64,
    /// The length in bytes of the file.
    pub(crate) len: usize,
    /// The hash of its content.
    pub(crate) hash: u64,
    /// Whether repeats refer to its beginning.
    pub(crate) is_cut: bool,
    pub(crate) data: PieceData,
}

/// A piece of a file, with the hash of the bytes read from the source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PieceDigest {
    /// The number of the file's inode.
    pub inode: usize,
    /// The offset in the file, in bytes.
    pub offset: u64,
    /// Its length in bytes.
    pub len: usize,
    /// The xxh64 of its bytes with seed 0; `None` if it is a hole.
    pub hash: Option<u64>,
}

/// The processed data of a piece.
pub(crate) enum PieceData {
    Flat(Vec<u8>),
    /// A compressed segment, its tail rule, and the hash of the fragment if there is one.
    Compressed(CompressedSegment, TailRule, u64),
    Repeat(Option<(Repeat, TailRule)>),
    Packed(Vec<u8>),
    /// Chunks, and their bytes.
    Chunks {
        /// The chunk size in bytes.
        chunk_len: usize,
        chunks: Vec<HashedChunk>,
        bytes: Vec<u8>,
    },
    /// Chunks that are holes.
    Hole {
        /// The chunk size in bytes.
        chunk_len: usize,
    },
}

/// A chunk of a piece: its length, and the digest of its content unless it is all zeros.
pub(crate) struct HashedChunk {
    pub(crate) len: usize,
    pub(crate) digest: Option<[u8; 32]>,
}

impl<'a> Piece<'a> {
    /// The pieces of a file in order, each at most a segment long.
    pub(crate) fn all_of(
        file: FileToStore<'a>,
        split: Option<&'a FileSplit>,
        lengths: SegmentLengths,
        options: &Options,
    ) -> impl Iterator<Item = Self> + use<'a> {
        let block_size = options.block_size();
        let mut segment_len = options.segment_len() as u64;
        match file.method {
            StorageMethod::Chunk { chunk_len } => segment_len = segment_len.next_multiple_of(chunk_len as u64),
            StorageMethod::Pack => segment_len = segment_len.min(PACK_LEN as u64),
            _ => {}
        }
        let size = file.content.size();
        let hole_len_max = HOLE_LEN_MAX.max(size / HOLE_PIECES_MAX);
        let mut repeats = split.map_or(&[][..], |split| &split.repeats).iter().peekable();
        let data = match file.method {
            // Errors of the file are reported when it is read.
            StorageMethod::Chunk { chunk_len } => {
                file.content.data_ranges(chunk_len as u64).unwrap_or_else(|_| iter::once(0..size).collect())
            }
            _ => Vec::new(),
        };
        let mut data = data.into_iter().peekable();
        let mut offset = 0;
        iter::from_fn(move || {
            if offset == size {
                return None;
            }
            let start = offset;
            let segment_len = lengths.segment_len(size - start, segment_len, block_size);
            let repeat = repeats.peek().copied().filter(|repeat| repeat.start <= start);
            let method = match (repeat, file.method) {
                (Some(repeat), StorageMethod::Compress(rule)) => {
                    offset = repeat.end().min(start + segment_len);
                    let rule = if offset < size { TailRule::within_file(offset, block_size) } else { rule };
                    StorageMethod::Repeat(
                        repeats.next_if(|repeat| repeat.end() == offset).map(|repeat| (*repeat, rule)),
                    )
                }
                (_, StorageMethod::Chunk { chunk_len }) => {
                    let _ = data.next_if(|range| range.end <= start);
                    match data.peek() {
                        Some(range) if range.start <= start => {
                            offset = range.end.min(start + segment_len);
                            StorageMethod::Chunk { chunk_len }
                        }
                        after => {
                            let end = after.map_or(size, |range| range.start);
                            offset = end.min(start + hole_len_max.next_multiple_of(chunk_len as u64));
                            StorageMethod::Hole { chunk_len }
                        }
                    }
                }
                (_, method) => {
                    let next_cut = split.and_then(|split| split.cuts.range(start + 1..).next());
                    let next = [repeats.peek().map(|repeat| repeat.start), next_cut.copied()];
                    let next = next.into_iter().flatten().min().unwrap_or(size);
                    offset = match file.method {
                        StorageMethod::Compress(_) => segment_end(start, next, segment_len, block_size),
                        _ => next.min(start + segment_len),
                    };
                    match method {
                        StorageMethod::Compress(_) if offset < size => {
                            StorageMethod::Compress(TailRule::within_file(offset, block_size))
                        }
                        other => other,
                    }
                }
            };
            let len = usize::try_from(offset - start).unwrap_or(usize::MAX);
            let is_cut = split.is_some_and(|split| split.cuts.contains(&start));
            Some(Piece { len, file, offset: start, is_cut, method })
        })
    }

    /// The number of bytes that [`Piece::process`] reads.
    pub(crate) fn read_len(&self) -> usize {
        if matches!(self.method, StorageMethod::Hole { .. }) { 0 } else { self.len }
    }

    /// Reads and processes the piece.
    pub(crate) fn process(&self, compressors: &mut Compressors<'_>, buffer: &mut Vec<u8>) -> Result<PieceOutput<'a>> {
        let FileToStore { content, coding, .. } = self.file;
        let open = content.open()?;
        if let StorageMethod::Hole { chunk_len } = self.method {
            return Ok(self.output(0, PieceData::Hole { chunk_len }));
        }
        lengthen(buffer, self.len)?;
        let bytes = &mut buffer[..self.len];
        open.read_at(self.offset, bytes)?;
        open.check_unchanged()?;
        let hash = xxh64(bytes, 0);
        let is_whole = self.offset == 0 && self.len as u64 == content.size();
        let data = match (self.method, compressors.of(coding)?) {
            (StorageMethod::Compress(rule), Some(compressor)) => {
                let segment = compressor.compress(bytes, rule, self.offset)?;
                match &segment.tail {
                    Tail::Fragment(fragment) => {
                        let hash = if fragment.len() == self.len { hash } else { xxh64(fragment, 0) };
                        PieceData::Compressed(segment, rule, hash)
                    }
                    _ if is_whole && !self.is_cut && !compressor.pays(&segment, self.len) => {
                        PieceData::Flat(copied(bytes)?)
                    }
                    _ => PieceData::Compressed(segment, rule, 0),
                }
            }
            (StorageMethod::Repeat(repeat), _) => PieceData::Repeat(repeat),
            (StorageMethod::Pack, _) => PieceData::Packed(copied(bytes)?),
            (StorageMethod::Chunk { chunk_len }, _) => {
                let chunks = hash_chunks(bytes, chunk_len);
                PieceData::Chunks { chunk_len, chunks, bytes: copied(bytes)? }
            }
            (StorageMethod::Hole { chunk_len }, _) => PieceData::Hole { chunk_len },
            (StorageMethod::Flat | StorageMethod::Compress(_), _) => PieceData::Flat(copied(bytes)?),
        };
        Ok(self.output(hash, data))
    }

    fn output(&self, hash: u64, data: PieceData) -> PieceOutput<'a> {
        let Self { offset, len, is_cut, file, .. } = *self;
        PieceOutput { file, offset, len, hash, is_cut, data }
    }
}

impl PieceOutput<'_> {
    /// The digest for verification.
    pub(crate) fn digest(&self) -> PieceDigest {
        let hash = (!matches!(self.data, PieceData::Hole { .. })).then_some(self.hash);
        PieceDigest { inode: self.file.place, offset: self.offset, len: self.len, hash }
    }

    /// Adds the content to a digest. For a chunked file these are the chunks, independent of which zeros were found as
    /// holes.
    pub(crate) fn digest_into(&self, digest: &mut Sha256) {
        let place = (self.file.place as u64).to_le_bytes();
        match &self.data {
            PieceData::Hole { .. } => {}
            PieceData::Chunks { chunks, .. } => {
                let mut offset = self.offset;
                for chunk in chunks {
                    if let Some(content) = chunk.digest {
                        digest.update(place);
                        digest.update(offset.to_le_bytes());
                        digest.update(content);
                    }
                    offset += chunk.len as u64;
                }
            }
            _ => {
                digest.update(place);
                digest.update(self.hash.to_le_bytes());
            }
        }
    }
}

impl SegmentLengths {
    /// The maximum length of the next segment if `left_len` bytes remain.
    fn segment_len(self, left_len: u64, segment_len: u64, block_size: u64) -> u64 {
        match self {
            Self::Even => segment_len,
            Self::Tapered => (left_len / TAPER_PARTS).clamp(segment_len / 2, segment_len).next_multiple_of(block_size),
        }
    }
}

/// Splits a piece that begins with a chunk into chunks.
fn hash_chunks(data: &[u8], chunk_len: usize) -> Vec<HashedChunk> {
    let digest = |chunk: &[u8]| {
        let is_hole = chunk.iter().all(|byte| *byte == 0);
        (!is_hole).then(|| Sha256::digest(chunk).into())
    };
    data.chunks(chunk_len).map(|chunk| HashedChunk { len: chunk.len(), digest: digest(chunk) }).collect()
}

/// Where a segment that begins at `start` ends, at or before `end`. It ends with an lcluster unless it reaches `end`,
/// and leaves a rest long enough to begin in an lcluster of its own.
pub(crate) fn segment_end(start: u64, end: u64, segment_len: u64, block_size: u64) -> u64 {
    let whole = start + segment_len - start % block_size;
    match end.checked_sub(whole) {
        None | Some(0) => end,
        Some(left) if left < 2 * block_size => whole - 2 * block_size,
        Some(_) => whole,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_leave_room_for_the_rest() {
        for block_size in [512, 4096] {
            let segment_len = 16 * block_size;
            for (start, end) in (0..3 * block_size)
                .step_by(97)
                .flat_map(|start| (1..70 * block_size).step_by(331).map(move |len| (start, start + len)))
                .chain((0..2 * block_size).map(|left| (0, segment_len + left)))
            {
                let mut at = start;
                while at < end {
                    let next = segment_end(at, end, segment_len, block_size);
                    assert!(next > at && next <= end && next - at <= segment_len, "{start} {end}: {at} {next}");
                    assert!(next == end || next.is_multiple_of(block_size) && end - next >= 2 * block_size);
                    at = next;
                }
            }
        }
    }
}
