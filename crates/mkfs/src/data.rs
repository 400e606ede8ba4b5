//! Storing the content of files: read and compressed on several threads, written in order.

use sha2::{Digest, Sha256};
use xxhash_rust::xxh64::xxh64;

use crate::{
    assembly::Assembler,
    chunks::{HashedChunk, hash_chunks},
    content::Content,
    error::Result,
    expected::PieceDigest,
    image_file::ImageFile,
    options::{Fragments, Options},
    packed::Packed,
    progress::{Phase, Progress, report},
    segment::{CompressedSegment, SegmentCompressor, Tail, TailRule},
    stored_file::StoredFile,
    workers,
};

/// Pieces are handed to a worker together until they have this many bytes.
const JOB_BYTES: usize = 1 << 20;
/// What a piece costs in memory besides its bytes.
const PIECE_COST: usize = 256;

/// A part of a file that is stored by itself.
struct Piece<'a> {
    place: usize,
    content: &'a Content,
    offset: u64,
    len: usize,
    treatment: Treatment,
}

/// What is done with a piece.
#[derive(Clone, Copy)]
enum Treatment {
    Flat,
    Compress(TailRule),
    Pack,
    Chunk { chunk_len: usize },
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
    pub(crate) data: PieceData,
}

/// What became of a piece.
pub(crate) enum PieceData {
    Flat(Vec<u8>),
    /// Compressed, and the hash of the fragment if there is one.
    Compressed(CompressedSegment, u64),
    Packed(Vec<u8>),
    Chunks(Vec<u8>, Vec<HashedChunk>),
}

/// Where all content went.
pub(crate) struct StoredData {
    /// For each place what became of it; [`StoredFile::EMPTY`] where there is no file.
    pub(crate) files: Vec<StoredFile>,
    /// The packed inode.
    pub(crate) packed: Option<(StoredFile, u64)>,
    /// How many bytes were found in the packed inode or in chunks already.
    pub(crate) duplicate_bytes: u64,
    /// The blob device, if there is one.
    pub(crate) blob: Option<ImageFile>,
    /// A digest of all content.
    pub(crate) digest: [u8; 32],
    /// Digests of the parts of files, in the order in which they were stored.
    pub(crate) pieces: Vec<PieceDigest>,
}

/// Stores the content of files, by place. `same` has the place of an earlier file with the same content, `kinds` tells which
/// files are alike, `ranks` which file comes first.
pub(crate) fn store(
    files: &[Option<&Content>],
    same: &[Option<usize>],
    kinds: &[u64],
    ranks: Option<&[usize]>,
    image: &mut ImageFile,
    options: &Options,
    progress: &mut dyn Progress,
) -> Result<StoredData> {
    let mut stored = vec![StoredFile::EMPTY; files.len()];
    let mut to_store = Vec::new();
    let mut digest = Sha256::new();
    let mut piece_digests = Vec::new();
    for (place, (content, same)) in files.iter().zip(same).enumerate() {
        match (content, same) {
            (_, Some(earlier)) => {
                stored[place] = StoredFile::SameAs(*earlier);
                digest.update((place as u64).to_le_bytes());
                digest.update((*earlier as u64).to_le_bytes());
            }
            (Some(content), None) if content.size() > 0 => to_store.push((place, *content)),
            _ => {}
        }
    }
    if let Some(ranks) = ranks {
        to_store.sort_by_key(|(place, _)| ranks[*place]);
    }
    let packed = if options.fragments == Fragments::None {
        None
    } else {
        Some(Packed::new(&options.output, options.segment_len())?)
    };
    let blob = options.blob_device.as_deref().map(ImageFile::create).transpose()?;
    let mut assembler = Assembler::new(image, blob, options, packed, kinds)?;
    let treatment = options.treatment();
    store_pieces(
        &to_store,
        treatment,
        &mut assembler,
        &mut stored,
        &mut digest,
        options,
        Phase::Data,
        progress,
        &mut piece_digests,
    )?;
    let duplicate_bytes = assembler.duplicate_bytes();
    let mut packed_inode = None;
    if let Some((content, places)) = assembler.take_packed()? {
        stored.iter_mut().for_each(|file| file.move_fragment(|offset| places.offset(offset)));
        let mut alone = [StoredFile::EMPTY];
        let treatment = Treatment::Compress(TailRule::Blocks);
        let whole = [(0, &content)];
        store_pieces(
            &whole,
            treatment,
            &mut assembler,
            &mut alone,
            &mut digest,
            options,
            Phase::Packed,
            progress,
            &mut Vec::new(),
        )?;
        let [stored] = alone;
        packed_inode = Some((stored, content.size()));
    }
    let blob = assembler.into_blob();
    Ok(StoredData {
        files: stored,
        packed: packed_inode,
        duplicate_bytes,
        blob,
        digest: digest.finalize().into(),
        pieces: piece_digests,
    })
}

#[allow(clippy::too_many_arguments)]
fn store_pieces(
    files: &[(usize, &Content)],
    treatment: Treatment,
    assembler: &mut Assembler<'_>,
    stored: &mut [StoredFile],
    digest: &mut Sha256,
    options: &Options,
    phase: Phase,
    progress: &mut dyn Progress,
    piece_digests: &mut Vec<PieceDigest>,
) -> Result<()> {
    let total = files.iter().map(|(_, content)| content.size()).sum();
    let mut pieces = files.iter().flat_map(|(place, content)| pieces(*place, content, treatment, options)).peekable();
    let next = || {
        let (mut job, mut bytes) = (Vec::new(), 0);
        while let Some(piece) = pieces.next_if(|piece| bytes == 0 || bytes + piece.len <= JOB_BYTES) {
            bytes += piece.len.max(1);
            job.push(piece);
        }
        // A piece is in memory twice: as it was read and as it is to be written.
        let cost = bytes * 2 + job.len() * PIECE_COST;
        (!job.is_empty()).then_some((job, cost))
    };
    let worker = || {
        let mut compressor = SegmentCompressor::new(options)?;
        let mut buffer = Vec::new();
        Ok(move |job: Vec<Piece<'_>>| -> Result<Vec<PieceOutput>> {
            job.iter().map(|piece| piece.treat(&mut compressor, &mut buffer)).collect()
        })
    };
    let mut sizes = files.iter().map(|(_, content)| (content.size(), *content));
    let mut current = None;
    let mut done = 0;
    workers::run(options.jobs, options.memory_bytes, worker, next, |outputs: Vec<PieceOutput>| {
        for output in outputs {
            if output.offset == 0 {
                current = sizes.next();
            }
            let Some((size, content)) = current else { break };
            done += output.len as u64;
            digest.update((output.place as u64).to_le_bytes());
            digest.update(output.hash.to_le_bytes());
            let place = output.place;
            let (offset, len, hash) = (output.offset, output.len, output.hash);
            piece_digests.push(PieceDigest { inode: place, offset, len, hash });
            if let Some(file) = assembler.add(output, size, content)? {
                stored[place] = file;
            }
        }
        report(progress, phase, done, total)
    })
}

fn pieces<'a>(
    place: usize,
    content: &'a Content,
    treatment: Treatment,
    options: &Options,
) -> impl Iterator<Item = Piece<'a>> {
    let mut segment_len = options.segment_len();
    if let Treatment::Chunk { chunk_len } = treatment {
        segment_len = segment_len.next_multiple_of(chunk_len);
    }
    let size = content.size();
    (0..size).step_by(segment_len).map(move |offset| {
        let len = usize::try_from(size - offset).unwrap_or(usize::MAX).min(segment_len);
        let is_last = offset + len as u64 == size;
        let treatment = match treatment {
            Treatment::Compress(_) if !is_last => Treatment::Compress(TailRule::Blocks),
            other => other,
        };
        Piece { place, content, offset, len, treatment }
    })
}

impl Options {
    fn treatment(&self) -> Treatment {
        if let Some(chunk_bytes) = self.chunk_bytes {
            return Treatment::Chunk { chunk_len: usize::try_from(chunk_bytes).unwrap_or(usize::MAX) };
        }
        match (self.compression, self.fragments, self.inline_pclusters) {
            (None, ..) => Treatment::Flat,
            (_, Fragments::All, _) => Treatment::Pack,
            (_, Fragments::Tails, _) => Treatment::Compress(TailRule::Fragment),
            (_, Fragments::None, true) => Treatment::Compress(TailRule::Inline),
            (_, Fragments::None, false) => Treatment::Compress(TailRule::Blocks),
        }
    }
}

impl Piece<'_> {
    fn treat(&self, compressor: &mut Option<SegmentCompressor>, buffer: &mut Vec<u8>) -> Result<PieceOutput> {
        let open = self.content.open()?;
        buffer.resize(self.len, 0);
        open.read_at(self.offset, buffer)?;
        open.check_unchanged()?;
        let hash = xxh64(buffer, 0);
        let is_whole = self.offset == 0 && self.len as u64 == self.content.size();
        let data = match (self.treatment, compressor) {
            (Treatment::Compress(rule), Some(compressor)) => {
                let segment = compressor.compress(buffer, rule)?;
                match &segment.tail {
                    Tail::Fragment(fragment) => {
                        let hash = if fragment.len() == self.len { hash } else { xxh64(fragment, 0) };
                        PieceData::Compressed(segment, hash)
                    }
                    _ if is_whole && !compressor.pays(&segment, self.len) => PieceData::Flat(std::mem::take(buffer)),
                    _ => PieceData::Compressed(segment, 0),
                }
            }
            (Treatment::Pack, _) => PieceData::Packed(std::mem::take(buffer)),
            (Treatment::Chunk { chunk_len }, _) => {
                let chunks = hash_chunks(buffer, chunk_len);
                PieceData::Chunks(std::mem::take(buffer), chunks)
            }
            (Treatment::Flat | Treatment::Compress(_), _) => PieceData::Flat(std::mem::take(buffer)),
        };
        Ok(PieceOutput { place: self.place, offset: self.offset, len: self.len, hash, data })
    }
}
