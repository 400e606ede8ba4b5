//! Stores the content of files: several threads read and compress, one writes in order.

use std::{os::unix::fs::FileExt, sync::Arc};

use floe_codec::release_freed_memory;
use sha2::{Digest, Sha256};

use crate::{
    assembly::Assembler,
    compressors::Compressors,
    content::Content,
    error::{Error, Result},
    expected::PieceDigest,
    file_split::FileSplits,
    hints::Coding,
    image_file::ImageFile,
    options::{Fragments, Options},
    output_file::scratch_file,
    packed::Packed,
    piece::{Cut, FileToStore, Piece, PieceOutput},
    progress::{Phase, Progress, report},
    repeats::find_repeats,
    segment::TailRule,
    storage_method::StorageMethod,
    stored_file::{StoredFile, StoredInode},
    workers,
};

/// Pieces are grouped into jobs until they have this many bytes.
const JOB_BYTES: usize = 1 << 20;
/// The memory per piece besides its bytes.
const PIECE_COST: usize = 256;

/// The result of storing all content.
pub(crate) struct StoredData {
    /// How many bytes were found as duplicates.
    pub(crate) duplicate_bytes: u64,
    /// The blob device, if any.
    pub(crate) blob: Option<ImageFile>,
    /// A digest of all content.
    pub(crate) digest: [u8; 32],
    /// Digests of the pieces of files, in the order of storage.
    pub(crate) pieces: Vec<PieceDigest>,
}

/// The contents to store, all indexed in image order.
pub(crate) struct Contents<'a> {
    pub(crate) files: &'a [Option<&'a Content>],
    /// The index of an earlier file with the same content.
    pub(crate) same: &'a [Option<usize>],
    /// The rank of each file if they are not stored in image order.
    pub(crate) ranks: Option<&'a [usize]>,
    /// The number of each file's coding.
    pub(crate) codings: &'a [Option<usize>],
}

/// Stores the content of files, and of special inodes.
pub(crate) struct DataStore<'a> {
    assembler: Assembler<'a>,
    digest: Sha256,
    pieces: Vec<PieceDigest>,
    options: &'a Options,
}

impl<'a> DataStore<'a> {
    /// Creates an empty store. `kinds` are the similarity groups of the files.
    pub(crate) fn new(image: &'a mut ImageFile, options: &'a Options, kinds: &'a [u64]) -> Result<Self> {
        let packed = if options.fragments == Fragments::None && !options.layout.packs_directories {
            None
        } else {
            Some(Packed::new(&options.output, options.fragment_run_len())?)
        };
        let blob = options.blob_device.as_deref().map(|path| ImageFile::create(path, 0, &options.temporaries));
        let blob = blob.transpose()?;
        let assembler = Assembler::new(image, blob, options, packed, kinds);
        Ok(Self { assembler, digest: Sha256::new(), pieces: Vec::new(), options })
    }

    /// The image, for data other than file content.
    pub(crate) fn image(&mut self) -> &mut ImageFile {
        self.assembler.image()
    }

    /// Stores all files. Returns the storage of each, [`StoredFile::EMPTY`] for other nodes.
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
                    let method = StorageMethod::of(content, self.options, coding)?;
                    to_store.push(FileToStore { place, content, coding, method });
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

    /// Appends to the packed inode; returns the offset.
    pub(crate) fn pack(&mut self, bytes: &[u8]) -> Result<u64> {
        self.assembler.append_packed(bytes)
    }

    /// Stores the packed inode and updates the fragment offsets of `files`. Returns its storage and size.
    pub(crate) fn store_packed(
        &mut self,
        files: &mut [StoredFile],
        progress: &mut dyn Progress,
    ) -> Result<Option<StoredInode>> {
        let Some((content, final_offsets)) = self.assembler.take_packed()? else { return Ok(None) };
        files.iter_mut().for_each(|file| file.move_fragment(|offset| final_offsets.offset(offset)));
        let usual = self.options.compression.map(|_| 0);
        let other = self.options.layout.packed_coding.and_then(|coding| self.options.coding_number(coding));
        self.store_alone(&content, other.or(usual), Phase::Packed, progress).map(Some)
    }

    /// Stores the metabox; returns its storage and size.
    pub(crate) fn store_metabox(
        &mut self,
        bytes: &[u8],
        coding: Option<Coding>,
        progress: &mut dyn Progress,
    ) -> Result<StoredInode> {
        let (path, size) = (self.options.output.as_path(), bytes.len() as u64);
        let file = scratch_file(path)?;
        let failed =
            |error| Error::Output { path: path.to_path_buf(), action: "write a temporary file next to", error };
        file.write_all_at(bytes, 0).map_err(failed)?;
        let content = Content::Region { file: Arc::new(file), path: path.into(), offset: 0, size, identity: None };
        let coding = coding.and_then(|coding| self.options.coding_number(coding));
        self.store_alone(&content, coding, Phase::Metadata, progress)
    }

    /// Finishes and returns the totals.
    pub(crate) fn finish(self) -> StoredData {
        StoredData {
            duplicate_bytes: self.assembler.duplicate_bytes(),
            blob: self.assembler.into_blob(),
            digest: self.digest.finalize().into(),
            pieces: self.pieces,
        }
    }

    /// Stores a special inode, which does not belong to the tree.
    fn store_alone(
        &mut self,
        content: &Content,
        coding: Option<usize>,
        phase: Phase,
        progress: &mut dyn Progress,
    ) -> Result<StoredInode> {
        let pieces = self.pieces.len();
        let mut alone = [StoredFile::EMPTY];
        let method = coding.map_or(StorageMethod::Flat, |_| StorageMethod::Compress(TailRule::Blocks));
        let file = FileToStore { place: 0, content, coding, method };
        self.store(&[file], &mut alone, phase, progress)?;
        self.pieces.truncate(pieces);
        let [stored] = alone;
        Ok((stored, content.size()))
    }

    /// Stores files in the given order.
    fn store(
        &mut self,
        files: &[FileToStore<'_>],
        stored: &mut [StoredFile],
        phase: Phase,
        progress: &mut dyn Progress,
    ) -> Result<()> {
        let options = self.options;
        let splits = if options.dedupe { splits(files, options, progress)? } else { FileSplits::default() };
        if options.has_large_pclusters() {
            release_freed_memory();
        }
        let total = files.iter().map(|file| file.content.size()).sum();
        let cut = if phase == Phase::Packed { Cut::Tapered } else { Cut::Even };
        let pieces = files.iter().flat_map(|file| Piece::all_of(*file, splits.of(file.place), cut, options));
        let mut pieces = pieces.peekable();
        let next = || {
            let (mut job, mut bytes) = (Vec::new(), 0);
            while let Some(piece) = pieces.next_if(|piece| bytes == 0 || bytes + piece.read_len() <= JOB_BYTES) {
                bytes += piece.read_len().max(1);
                job.push(piece);
            }
            // Memory holds each piece twice: the bytes read and the bytes to write.
            let cost = bytes * 2 + job.len() * PIECE_COST;
            (!job.is_empty()).then_some((job, cost))
        };
        let worker = || {
            let mut compressors = Compressors::new(options);
            let mut buffer = Vec::new();
            Ok(move |job: Vec<Piece<'_>>| -> Result<Vec<PieceOutput>> {
                job.iter().map(|piece| piece.process(&mut compressors, &mut buffer)).collect()
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

/// Splits files at repeated data. Data can only refer to data with the same coding.
fn splits(files: &[FileToStore<'_>], options: &Options, progress: &mut dyn Progress) -> Result<FileSplits> {
    let mut splits = FileSplits::default();
    for (number, coding) in options.codings().into_iter().enumerate() {
        let of_coding =
            |file: &&FileToStore<'_>| file.coding == Some(number) && matches!(file.method, StorageMethod::Compress(_));
        let files: Vec<_> = files.iter().filter(of_coding).map(|file| (file.place, file.content)).collect();
        splits.join(find_repeats(&files, coding.pcluster_bytes, options, progress)?);
    }
    Ok(splits)
}
