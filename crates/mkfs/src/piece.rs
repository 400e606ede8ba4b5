//! Parts of files that are stored by themselves: read, and perhaps compressed, on several threads.

use xxhash_rust::xxh64::{Xxh64, xxh64};

use crate::{
    chunks::{HashedChunk, hash_chunks},
    compressors::Compressors,
    content::{Content, OpenContent},
    error::Result,
    options::{Fragments, Options},
    parting::Parting,
    repeats::Repeat,
    segment::{CompressedSegment, SegmentCompressor, Tail, TailRule},
};

/// What is longer than this is read while it is compressed, about so many bytes ahead, instead of whole: large pclusters
/// are made of parts of 16 MiB, for each thread.
const READ_AHEAD_LEN: usize = 11 << 19;
/// What is left is read at once if it is at most so many bytes more: how a part ends is decided when all of it is there.
const READ_MARGIN: usize = 256 << 10;
/// What goes into the packed inode as it is needs no longer parts than this, in bytes.
const PACK_LEN: usize = 4 << 20;

/// How files are cut into segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cut {
    /// Into segments of one length.
    Even,
    /// Into ever shorter ones, down to half of that, so that all threads are busy until the end.
    Tapered,
}

/// What is left is divided by this for the next segment of a file that is cut so.
const TAPER_PARTS: u64 = 3;

/// A file that is to be stored.
#[derive(Clone, Copy)]
pub(crate) struct FileToStore<'a> {
    /// Its place.
    pub(crate) place: usize,
    pub(crate) content: &'a Content,
    /// The number of its coding, if it is compressed.
    pub(crate) coding: Option<usize>,
    pub(crate) treatment: Treatment,
}

/// A part of a file that is stored by itself.
pub(crate) struct Piece<'a> {
    pub(crate) len: usize,
    file: FileToStore<'a>,
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
    /// The number of the file's coding.
    pub(crate) coding: Option<usize>,
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
        file: FileToStore<'a>,
        parting: Option<&'a Parting>,
        cut: Cut,
        options: &Options,
    ) -> impl Iterator<Item = Self> + use<'a> {
        let block_size = options.block_size();
        let mut segment_len = options.segment_len() as u64;
        match file.treatment {
            Treatment::Chunk { chunk_len } => segment_len = segment_len.next_multiple_of(chunk_len as u64),
            Treatment::Pack => segment_len = segment_len.min(PACK_LEN as u64),
            _ => {}
        }
        let size = file.content.size();
        let mut repeats = parting.map_or(&[][..], |parting| &parting.repeats).iter().peekable();
        let mut offset = 0;
        std::iter::from_fn(move || {
            if offset == size {
                return None;
            }
            let start = offset;
            let segment_len = cut.segment_len(size - start, segment_len, block_size);
            let repeat = repeats.peek().copied().filter(|repeat| repeat.start <= start);
            let treatment = match (repeat, file.treatment) {
                (Some(repeat), Treatment::Compress(rule)) => {
                    offset = repeat.end().min(start + segment_len);
                    let rule = if offset < size { TailRule::within_file(offset, block_size) } else { rule };
                    Treatment::Repeat(repeats.next_if(|repeat| repeat.end() == offset).map(|repeat| (*repeat, rule)))
                }
                (_, treatment) => {
                    let next_cut = parting.and_then(|parting| parting.cuts.range(start + 1..).next());
                    let next = [repeats.peek().map(|repeat| repeat.start), next_cut.copied()];
                    let next = next.into_iter().flatten().min().unwrap_or(size);
                    offset = match file.treatment {
                        Treatment::Compress(_) => segment_end(start, next, segment_len, block_size),
                        _ => next.min(start + segment_len),
                    };
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
            Some(Piece { len, file, offset: start, is_cut, treatment })
        })
    }

    /// Reads the piece and does with it what is to be done.
    pub(crate) fn treat(&self, compressors: &mut Compressors<'_>, buffer: &mut Vec<u8>) -> Result<PieceOutput> {
        let FileToStore { content, coding, .. } = self.file;
        let open = content.open()?;
        if let Treatment::Compress(rule) = self.treatment
            && self.len > READ_AHEAD_LEN + READ_MARGIN
            && let Some(compressor) = compressors.of(coding)?
        {
            let (segment, hash) = self.compress_while_reading(&open, compressor, rule, buffer)?;
            open.check_unchanged()?;
            let fragment_hash = match &segment.tail {
                Tail::Fragment(fragment) => xxh64(fragment, 0),
                _ => 0,
            };
            return Ok(self.output(hash, PieceData::Compressed(segment, rule, fragment_hash)));
        }
        if buffer.len() < self.len {
            buffer.resize(self.len, 0);
        }
        let bytes = &mut buffer[..self.len];
        open.read_at(self.offset, bytes)?;
        open.check_unchanged()?;
        let hash = xxh64(bytes, 0);
        let is_whole = self.offset == 0 && self.len as u64 == content.size();
        let data = match (self.treatment, compressors.of(coding)?) {
            (Treatment::Compress(rule), Some(compressor)) => {
                let segment = compressor.compress(bytes, rule, self.offset)?;
                match &segment.tail {
                    Tail::Fragment(fragment) => {
                        let hash = if fragment.len() == self.len { hash } else { xxh64(fragment, 0) };
                        PieceData::Compressed(segment, rule, hash)
                    }
                    _ if is_whole && !self.is_cut && !compressor.pays(&segment, self.len) => {
                        PieceData::Flat(bytes.to_vec())
                    }
                    _ => PieceData::Compressed(segment, rule, 0),
                }
            }
            (Treatment::Repeat(repeat), _) => PieceData::Repeat(repeat),
            (Treatment::Pack, _) => PieceData::Packed(bytes.to_vec()),
            (Treatment::Chunk { chunk_len }, _) => {
                let chunks = hash_chunks(bytes, chunk_len);
                PieceData::Chunks(bytes.to_vec(), chunks)
            }
            (Treatment::Flat | Treatment::Compress(_), _) => PieceData::Flat(bytes.to_vec()),
        };
        Ok(self.output(hash, data))
    }

    /// Reads the piece as far as it is needed, compresses that, and goes on; gives the hash of all of it too.
    fn compress_while_reading(
        &self,
        open: &OpenContent<'_>,
        compressor: &mut SegmentCompressor,
        rule: TailRule,
        buffer: &mut Vec<u8>,
    ) -> Result<(CompressedSegment, u64)> {
        let mut hash = Xxh64::new(0);
        let mut segment = compressor.begin();
        let mut ahead_len = READ_AHEAD_LEN;
        // What was compressed, and what was read beyond that: the beginning of the buffer.
        let (mut done_len, mut held_len) = (0, 0);
        loop {
            let left_len = self.len - done_len;
            let is_end = left_len <= ahead_len + READ_MARGIN;
            let wanted_len = if is_end { left_len } else { ahead_len };
            if buffer.len() < wanted_len {
                buffer.resize(wanted_len, 0);
            }
            let new = &mut buffer[held_len..wanted_len];
            open.read_at(self.offset + (done_len + held_len) as u64, new)?;
            hash.update(new);
            held_len = wanted_len;
            if is_end {
                compressor.end(&mut segment, &buffer[..held_len], rule, self.offset + done_len as u64)?;
                return Ok((segment, hash.digest()));
            }
            match compressor.put_next(&mut segment, &buffer[..held_len])? {
                Some(len) => {
                    buffer.copy_within(len..held_len, 0);
                    (done_len, held_len) = (done_len + len, held_len - len);
                }
                None => ahead_len *= 2,
            }
        }
    }

    fn output(&self, hash: u64, data: PieceData) -> PieceOutput {
        let Self { offset, len, is_cut, file, .. } = *self;
        PieceOutput { place: file.place, offset, len, hash, is_cut, coding: file.coding, data }
    }
}

impl Cut {
    /// How long the next segment is at most where so many bytes are left.
    fn segment_len(self, left_len: u64, segment_len: u64, block_size: u64) -> u64 {
        match self {
            Self::Even => segment_len,
            Self::Tapered => (left_len / TAPER_PARTS).clamp(segment_len / 2, segment_len).next_multiple_of(block_size),
        }
    }
}

/// Where a part of a file ends that begins at `start`, before or at `end`: with an lcluster, where it cannot go on to the
/// end, and not so near to the end that what is left would have no lcluster of its own to begin in.
pub(crate) fn segment_end(start: u64, end: u64, segment_len: u64, block_size: u64) -> u64 {
    let whole = start + segment_len - start % block_size;
    match end.checked_sub(whole) {
        None | Some(0) => end,
        Some(left) if left < 2 * block_size => whole - 2 * block_size,
        Some(_) => whole,
    }
}

impl Treatment {
    /// What is done with files that have this coding.
    pub(crate) fn of_files(options: &Options, coding: Option<usize>) -> Self {
        if let Some(chunk_bytes) = options.chunk_bytes {
            return Self::Chunk { chunk_len: usize::try_from(chunk_bytes).unwrap_or(usize::MAX) };
        }
        match (coding, options.fragments) {
            (None, _) => Self::Flat,
            (_, Fragments::All) => Self::Pack,
            (_, _) => Self::Compress(TailRule::of_files(options)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_leave_room_for_what_is_left() {
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
