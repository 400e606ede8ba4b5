//! Storing the content of files: read and compressed on several threads, written in order.

use std::{os::unix::fs::FileExt, sync::Arc};

use floe_codec::release_freed_memory;
use sha2::{Digest, Sha256};

use crate::{
    assembly::Assembler,
    compressors::Compressors,
    content::Content,
    error::{Error, Result},
    expected::PieceDigest,
    hints::Coding,
    image_file::{ImageFile, scratch_file},
    options::{Fragments, Options},
    packed::Packed,
    parting::Partings,
    piece::{Cut, FileToStore, Piece, PieceOutput},
    progress::{Phase, Progress, report},
    repeats::find_repeats,
    segment::TailRule,
    stored_file::{StoredFile, StoredInode},
    treatment::Treatment,
    workers,
};

/// Pieces are handed to a worker together until they have this many bytes.
const JOB_BYTES: usize = 1 << 20;
/// What a piece costs in memory besides its bytes.
const PIECE_COST: usize = 256;

/// What is known of all content when it is stored.
pub(crate) struct StoredData {
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
    /// Which file comes first; without, they are stored by their places.
    pub(crate) ranks: Option<&'a [usize]>,
    /// The number of a file's coding.
    pub(crate) codings: &'a [Option<usize>],
}

/// Stores the content of files, and of the inodes that hold parts of others.
pub(crate) struct DataStore<'a> {
    assembler: Assembler<'a>,
    digest: Sha256,
    pieces: Vec<PieceDigest>,
    options: &'a Options,
}

impl<'a> DataStore<'a> {
    /// Nothing is stored yet. What files are alike is told by place.
    pub(crate) fn new(image: &'a mut ImageFile, options: &'a Options, kinds: &'a [u64]) -> Result<Self> {
        let packed = if options.fragments == Fragments::None && !options.layout.packs_directories {
            None
        } else {
            Some(Packed::new(&options.output, options.fragment_run_len())?)
        };
        let blob = options.blob_device.as_deref().map(|path| ImageFile::create(path, 0)).transpose()?;
        let assembler = Assembler::new(image, blob, options, packed, kinds);
        Ok(Self { assembler, digest: Sha256::new(), pieces: Vec::new(), options })
    }

    /// The image, for what is no file's content.
    pub(crate) fn image(&mut self) -> &mut ImageFile {
        self.assembler.image()
    }

    /// Stores all files. Gives for each place what became of it; [`StoredFile::EMPTY`] where there is no file.
    pub(crate) fn store_files(
        &mut self,
        contents: &Contents<'_>,
        progress: &mut dyn Progress,
    ) -> Result<Vec<StoredFile>> {
        let Contents { files, same, ranks, codings } = *contents;
        let mut stored = vec![StoredFile::EMPTY; files.len()];
        let mut to_store = Vec::new();
        for (place, (content, same)) in files.iter().zip(same).enumerate() {
            match (content, same) {
                (_, Some(earlier)) => {
                    stored[place] = StoredFile::SameAs(*earlier);
                    self.digest.update((place as u64).to_le_bytes());
                    self.digest.update((*earlier as u64).to_le_bytes());
                }
                (Some(content), None) if content.size() > 0 => {
                    let coding = codings[place];
                    let treatment = Treatment::of(content, self.options, coding)?;
                    to_store.push(FileToStore { place, content, coding, treatment });
                }
                _ => {}
            }
        }
        if let Some(ranks) = ranks {
            to_store.sort_by_key(|file| ranks[file.place]);
        }
        self.store(&to_store, &mut stored, Phase::Data, progress)?;
        Ok(stored)
    }

    /// Adds to the packed inode; gives where in it that is.
    pub(crate) fn pack(&mut self, bytes: &[u8]) -> Result<u64> {
        self.assembler.append_packed(bytes)
    }

    /// Stores the packed inode, and tells `files` where their parts of it are. Gives what became of it, and its size.
    pub(crate) fn store_packed(
        &mut self,
        files: &mut [StoredFile],
        progress: &mut dyn Progress,
    ) -> Result<Option<StoredInode>> {
        let Some((content, places)) = self.assembler.take_packed()? else { return Ok(None) };
        files.iter_mut().for_each(|file| file.move_fragment(|offset| places.offset(offset)));
        let usual = self.options.compression.map(|_| 0);
        let other = self.options.layout.packed_coding.and_then(|coding| self.options.coding_number(coding));
        self.store_alone(&content, other.or(usual), Phase::Packed, progress).map(Some)
    }

    /// Stores the metabox; gives what became of it, and its size.
    pub(crate) fn store_metabox(
        &mut self,
        bytes: &[u8],
        coding: Option<Coding>,
        progress: &mut dyn Progress,
    ) -> Result<StoredInode> {
        let (path, size) = (self.options.output.as_path(), bytes.len() as u64);
        let file = scratch_file(path)?;
        let failed = |error| Error::Output { path: path.to_path_buf(), action: "write a temporary file beside", error };
        file.write_all_at(bytes, 0).map_err(failed)?;
        let content = Content::Region { file: Arc::new(file), path: path.into(), offset: 0, size, identity: None };
        let coding = coding.and_then(|coding| self.options.coding_number(coding));
        self.store_alone(&content, coding, Phase::Metadata, progress)
    }

    /// What there is to say of all that was stored.
    pub(crate) fn finish(self) -> StoredData {
        StoredData {
            duplicate_bytes: self.assembler.duplicate_bytes(),
            blob: self.assembler.into_blob(),
            digest: self.digest.finalize().into(),
            pieces: self.pieces,
        }
    }

    /// Stores an inode that is no file of the tree: what it holds is compared as parts of those.
    fn store_alone(
        &mut self,
        content: &Content,
        coding: Option<usize>,
        phase: Phase,
        progress: &mut dyn Progress,
    ) -> Result<StoredInode> {
        let pieces = self.pieces.len();
        let mut alone = [StoredFile::EMPTY];
        let treatment = coding.map_or(Treatment::Flat, |_| Treatment::Compress(TailRule::Blocks));
        let file = FileToStore { place: 0, content, coding, treatment };
        self.store(&[file], &mut alone, phase, progress)?;
        self.pieces.truncate(pieces);
        let [stored] = alone;
        Ok((stored, content.size()))
    }

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
