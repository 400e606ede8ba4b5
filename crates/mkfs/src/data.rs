//! Storing the content of files: read and compressed on several threads, written in order.

use floe_codec::release_freed_memory;
use sha2::{Digest, Sha256};

use crate::{
    assembly::Assembler,
    compressors::Compressors,
    content::Content,
    error::Result,
    expected::PieceDigest,
    image_file::ImageFile,
    options::{Fragments, Options},
    packed::Packed,
    parting::Partings,
    piece::{Cut, FileToStore, Piece, PieceOutput},
    progress::{Phase, Progress, report},
    repeats::find_repeats,
    segment::TailRule,
    stored_file::StoredFile,
    treatment::Treatment,
    workers,
};

/// Pieces are handed to a worker together until they have this many bytes.
const JOB_BYTES: usize = 1 << 20;
/// What a piece costs in memory besides its bytes.
const PIECE_COST: usize = 256;

/// Where all content went.
pub(crate) struct StoredData {
    /// For each place what became of it; [`StoredFile::EMPTY`] where there is no file.
    pub(crate) files: Vec<StoredFile>,
    /// The packed inode.
    pub(crate) packed: Option<(StoredFile, u64)>,
    /// How many bytes were found to be there already.
    pub(crate) duplicate_bytes: u64,
    /// The blob device, if there is one.
    pub(crate) blob: Option<ImageFile>,
    /// A digest of all content.
    pub(crate) digest: [u8; 32],
    /// Digests of the parts of files, in the order in which they were stored.
    pub(crate) pieces: Vec<PieceDigest>,
}

/// What there is to store, all by place.
pub(crate) struct Contents<'a> {
    pub(crate) files: &'a [Option<&'a Content>],
    /// The place of an earlier file with the same content.
    pub(crate) same: &'a [Option<usize>],
    /// Which files are alike.
    pub(crate) kinds: &'a [u64],
    /// Which file comes first; without, they are stored by their places.
    pub(crate) ranks: Option<&'a [usize]>,
    /// The number of a file's coding.
    pub(crate) codings: &'a [Option<usize>],
}

/// Stores the content of files.
pub(crate) fn store(
    contents: &Contents<'_>,
    image: &mut ImageFile,
    options: &Options,
    progress: &mut dyn Progress,
) -> Result<StoredData> {
    let Contents { files, same, kinds, ranks, codings } = *contents;
    let mut stored = vec![StoredFile::EMPTY; files.len()];
    let mut to_store = Vec::new();
    let mut digest = Sha256::new();
    for (place, (content, same)) in files.iter().zip(same).enumerate() {
        match (content, same) {
            (_, Some(earlier)) => {
                stored[place] = StoredFile::SameAs(*earlier);
                digest.update((place as u64).to_le_bytes());
                digest.update((*earlier as u64).to_le_bytes());
            }
            (Some(content), None) if content.size() > 0 => {
                let coding = codings[place];
                let treatment = Treatment::of(content, options, coding)?;
                to_store.push(FileToStore { place, content, coding, treatment });
            }
            _ => {}
        }
    }
    if let Some(ranks) = ranks {
        to_store.sort_by_key(|file| ranks[file.place]);
    }
    let packed = if options.fragments == Fragments::None {
        None
    } else {
        Some(Packed::new(&options.output, options.fragment_run_len())?)
    };
    let blob = options.blob_device.as_deref().map(ImageFile::create).transpose()?;
    let assembler = Assembler::new(image, blob, options, packed, kinds);
    let mut storing = Storing { assembler, digest, pieces: Vec::new(), options };
    storing.store(&to_store, &mut stored, Phase::Data, progress)?;
    let mut packed_inode = None;
    if let Some((content, places)) = storing.assembler.take_packed()? {
        stored.iter_mut().for_each(|file| file.move_fragment(|offset| places.offset(offset)));
        let pieces = storing.pieces.len();
        let mut alone = [StoredFile::EMPTY];
        let treatment = Treatment::Compress(TailRule::Blocks);
        let file = FileToStore { place: 0, content: &content, coding: Some(0), treatment };
        storing.store(&[file], &mut alone, Phase::Packed, progress)?;
        // What is in the packed inode is compared as a part of files.
        storing.pieces.truncate(pieces);
        let [stored] = alone;
        packed_inode = Some((stored, content.size()));
    }
    Ok(StoredData {
        files: stored,
        packed: packed_inode,
        duplicate_bytes: storing.assembler.duplicate_bytes(),
        blob: storing.assembler.into_blob(),
        digest: storing.digest.finalize().into(),
        pieces: storing.pieces,
    })
}

/// What pieces are stored with.
struct Storing<'a> {
    assembler: Assembler<'a>,
    digest: Sha256,
    pieces: Vec<PieceDigest>,
    options: &'a Options,
}

impl Storing<'_> {
    /// Stores files in their order.
    fn store(
        &mut self,
        files: &[FileToStore<'_>],
        stored: &mut [StoredFile],
        phase: Phase,
        progress: &mut dyn Progress,
    ) -> Result<()> {
        let options = self.options;
        let partings = if options.dedupe { partings(files, options, progress)? } else { Partings::default() };
        if options.has_large_pclusters() {
            release_freed_memory();
        }
        let total = files.iter().map(|file| file.content.size()).sum();
        let cut = if phase == Phase::Packed { Cut::Tapered } else { Cut::Even };
        let pieces = files.iter().flat_map(|file| Piece::all_of(*file, partings.of(file.place), cut, options));
        let mut pieces = pieces.peekable();
        let next = || {
            let (mut job, mut bytes) = (Vec::new(), 0);
            while let Some(piece) = pieces.next_if(|piece| bytes == 0 || bytes + piece.read_len() <= JOB_BYTES) {
                bytes += piece.read_len().max(1);
                job.push(piece);
            }
            // A piece is in memory twice: as it was read and as it is to be written.
            let cost = bytes * 2 + job.len() * PIECE_COST;
            (!job.is_empty()).then_some((job, cost))
        };
        let worker = || {
            let mut compressors = Compressors::new(options);
            let mut buffer = Vec::new();
            Ok(move |job: Vec<Piece<'_>>| -> Result<Vec<PieceOutput>> {
                job.iter().map(|piece| piece.treat(&mut compressors, &mut buffer)).collect()
            })
        };
        let mut contents = files.iter().map(|file| file.content);
        let mut current = None;
        let mut done = 0;
        workers::run(options.jobs, options.memory_len(), worker, next, |outputs: Vec<PieceOutput>| {
            for output in outputs {
                if output.offset == 0 {
                    current = contents.next();
                }
                let Some(content) = current else { break };
                let PieceOutput { place, offset, len, .. } = output;
                done += len as u64;
                output.digest_into(&mut self.digest);
                self.pieces.push(PieceDigest { inode: place, offset, len, hash: output.content_hash() });
                if let Some(file) = self.assembler.add(output, content, stored)? {
                    stored[place] = file;
                }
            }
            report(progress, phase, done, total)
        })
    }
}

/// How what files have in common parts them. What is compressed in one way cannot refer to what is in another.
fn partings(files: &[FileToStore<'_>], options: &Options, progress: &mut dyn Progress) -> Result<Partings> {
    let mut partings = Partings::default();
    for (number, coding) in options.codings().into_iter().enumerate() {
        let of_coding =
            |file: &&FileToStore<'_>| file.coding == Some(number) && matches!(file.treatment, Treatment::Compress(_));
        let files: Vec<_> = files.iter().filter(of_coding).map(|file| (file.place, file.content)).collect();
        partings.join(find_repeats(&files, coding.pcluster_bytes, options, progress)?);
    }
    Ok(partings)
}
