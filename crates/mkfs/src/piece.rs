//! Parts of files that are stored by themselves: read, and perhaps compressed, on several threads.

use xxhash_rust::xxh64::xxh64;

use crate::{
    chunks::{HashedChunk, hash_chunks},
    content::Content,
    error::Result,
    options::{Fragments, Options},
    parting::Parting,
    repeats::Repeat,
    segment::{CompressedSegment, SegmentCompressor, Tail, TailRule},
};

/// A part of a file that is stored by itself.
pub(crate) struct Piece<'a> {
    pub(crate) place: usize,
    pub(crate) len: usize,
    content: &'a Content,
    offset: u64,
    is_cut: bool,
    treatment: Treatment,
}

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
}

/// A piece that was read and perhaps compressed.
pub(crate) struct PieceOutput {
    /// The file's place.
    pub(crate) place: usize,
    /// Where in the file it begins.
    pub(crate) offset: u64,
    /// How many bytes of the file it is.
    pub(crate) len: usize,
    /// The hash of its content.
    pub(crate) hash: u64,
    /// Whether repeats refer to its beginning.
    pub(crate) is_cut: bool,
    pub(crate) data: PieceData,
}

/// What became of a piece.
pub(crate) enum PieceData {
    Flat(Vec<u8>),
    /// Compressed by this rule, and the hash of the fragment if there is one.
    Compressed(CompressedSegment, TailRule, u64),
    Repeat(Option<(Repeat, TailRule)>),
    Packed(Vec<u8>),
    Chunks(Vec<u8>, Vec<HashedChunk>),
}

impl<'a> Piece<'a> {
    /// The pieces of a file in their order, each at most a segment long.
    pub(crate) fn all_of(
        place: usize,
        content: &'a Content,
        parting: Option<&'a Parting>,
        treatment: Treatment,
        options: &Options,
    ) -> impl Iterator<Item = Self> + use<'a> {
        let block_size = options.block_size();
        let mut segment_len = options.segment_len() as u64;
        if let Treatment::Chunk { chunk_len } = treatment {
            segment_len = segment_len.next_multiple_of(chunk_len as u64);
        }
        let size = content.size();
        let mut repeats = parting.map_or(&[][..], |parting| &parting.repeats).iter().peekable();
        let mut offset = 0;
        std::iter::from_fn(move || {
            if offset == size {
                return None;
            }
            let start = offset;
            let repeat = repeats.peek().copied().filter(|repeat| repeat.start <= start);
            let treatment = match (repeat, treatment) {
                (Some(repeat), Treatment::Compress(rule)) => {
                    offset = repeat.end().min(start + segment_len);
                    let rule = if offset < size { TailRule::within_file(offset, block_size) } else { rule };
                    Treatment::Repeat(repeats.next_if(|repeat| repeat.end() == offset).map(|repeat| (*repeat, rule)))
                }
                (_, treatment) => {
                    let next_cut = parting.and_then(|parting| parting.cuts.range(start + 1..).next());
                    let next = [repeats.peek().map(|repeat| repeat.start), next_cut.copied()];
                    let next = next.into_iter().flatten().min().unwrap_or(size);
                    // Where nothing else says where a piece ends, it ends with an lcluster.
                    let whole = start + segment_len - start % block_size;
                    offset = next.min(whole);
                    match treatment {
                        Treatment::Compress(_) if offset < size => {
                            Treatment::Compress(TailRule::within_file(offset, block_size))
                        }
                        other => other,
                    }
                }
            };
            let len = usize::try_from(offset - start).unwrap_or(usize::MAX);
            let is_cut = parting.is_some_and(|parting| parting.cuts.contains(&start));
            Some(Piece { place, content, offset: start, len, is_cut, treatment })
        })
    }

    /// Reads the piece and does with it what is to be done.
    pub(crate) fn treat(
        &self,
        compressor: &mut Option<SegmentCompressor>,
        buffer: &mut Vec<u8>,
    ) -> Result<PieceOutput> {
        let open = self.content.open()?;
        buffer.resize(self.len, 0);
        open.read_at(self.offset, buffer)?;
        open.check_unchanged()?;
        let hash = xxh64(buffer, 0);
        let is_whole = self.offset == 0 && self.len as u64 == self.content.size();
        let data = match (self.treatment, compressor) {
            (Treatment::Compress(rule), Some(compressor)) => {
                let segment = compressor.compress(buffer, rule, self.offset)?;
                match &segment.tail {
                    Tail::Fragment(fragment) => {
                        let hash = if fragment.len() == self.len { hash } else { xxh64(fragment, 0) };
                        PieceData::Compressed(segment, rule, hash)
                    }
                    _ if is_whole && !self.is_cut && !compressor.pays(&segment, self.len) => {
                        PieceData::Flat(std::mem::take(buffer))
                    }
                    _ => PieceData::Compressed(segment, rule, 0),
                }
            }
            (Treatment::Repeat(repeat), _) => PieceData::Repeat(repeat),
            (Treatment::Pack, _) => PieceData::Packed(std::mem::take(buffer)),
            (Treatment::Chunk { chunk_len }, _) => {
                let chunks = hash_chunks(buffer, chunk_len);
                PieceData::Chunks(std::mem::take(buffer), chunks)
            }
            (Treatment::Flat | Treatment::Compress(_), _) => PieceData::Flat(std::mem::take(buffer)),
        };
        let Self { place, offset, len, is_cut, .. } = *self;
        Ok(PieceOutput { place, offset, len, hash, is_cut, data })
    }
}

impl Treatment {
    /// What is done with files.
    pub(crate) fn of_files(options: &Options) -> Self {
        if let Some(chunk_bytes) = options.chunk_bytes {
            return Self::Chunk { chunk_len: usize::try_from(chunk_bytes).unwrap_or(usize::MAX) };
        }
        match (options.compression, options.fragments) {
            (None, _) => Self::Flat,
            (_, Fragments::All) => Self::Pack,
            (_, _) => Self::Compress(TailRule::of_files(options)),
        }
    }
}
