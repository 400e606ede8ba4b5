//! Reads and compresses the files of a SquashFS image: their blocks, and the fragment blocks with their ends.

mod plan;

use floe_codec::encode::BlockEncoder;
use floe_squashfs::format::BLOCK_UNCOMPRESSED;
use plan::{BlockPlan, Tail, Work};
use xxhash_rust::xxh64::xxh64;

use super::piece::PieceDigest;
use crate::{
    content::BlockFile,
    error::Result,
    memory::lengthen,
    options::{Options, SquashfsOptions, UncompressedParts},
    progress::{Phase, Progress, report},
    tree::content::Content,
    workers,
};

/// Work is grouped into jobs until it has this many bytes.
const JOB_BYTES: usize = 1 << 20;
/// The memory for a part of a job besides its bytes.
const WORK_COST: usize = 384;
/// Shorter blocks are never compressed.
const COMPRESSED_LEN_MIN: usize = 16;

/// Stored blocks, in the order of the image.
pub(crate) enum StoredBlocks {
    /// Contiguous blocks of a file: their size words, and the bytes of all.
    Data { digest: PieceDigest, words: Vec<u32>, bytes: Vec<u8>, hole_bytes: u64 },
    /// This many blocks of a file that are holes.
    Hole { digest: PieceDigest, block_count: u64 },
    /// A fragment block, with the ends of files that it consists of.
    Fragment { tails: Vec<PieceDigest>, word: u32, bytes: Vec<u8> },
}

/// Reads and compresses files. `put` receives the blocks in order, on the calling thread.
pub(crate) fn compress_blocks<'a>(
    files: &[BlockFile<'a>],
    squashfs: &SquashfsOptions,
    options: &Options,
    progress: &mut dyn Progress,
    mut put: impl FnMut(StoredBlocks) -> Result<()>,
) -> Result<()> {
    let total = files.iter().map(|file| file.content.size()).sum();
    let mut plan = BlockPlan::new(files, squashfs).peekable();
    let next = || {
        let (mut job, mut bytes, mut parts) = (Vec::new(), 0, 0);
        while let Some(work) = plan.next_if(|work| bytes == 0 || bytes + work.read_len() <= JOB_BYTES) {
            bytes += work.read_len().max(1);
            parts += work.part_count();
            job.push(work);
        }
        // Memory holds each block twice: the bytes read and the bytes to write.
        (!job.is_empty()).then_some((job, bytes * 2 + parts * WORK_COST))
    };
    let worker = || {
        let encoder = squashfs.compression.encoder()?;
        let (block_len, uncompressed) = (squashfs.block_len(), squashfs.uncompressed);
        let finds_holes = squashfs.finds_holes;
        let mut worker = BlockWorker { encoder, buffer: Vec::new(), block_len, finds_holes, uncompressed };
        Ok(move |job: Vec<Work<'a>>| -> Result<Vec<StoredBlocks>> {
            job.into_iter().map(|work| worker.process(work)).collect()
        })
    };
    let mut done = 0;
    workers::run(options.jobs, options.memory_len(), worker, next, |outputs: Vec<StoredBlocks>| {
        for output in outputs {
            done += output.content_bytes();
            put(output)?;
        }
        report(progress, Phase::Data, done, total)
    })
}

impl StoredBlocks {
    /// How many bytes of files it has.
    fn content_bytes(&self) -> u64 {
        match self {
            Self::Data { digest, .. } | Self::Hole { digest, .. } => digest.len as u64,
            Self::Fragment { tails, .. } => tails.iter().map(|tail| tail.len as u64).sum(),
        }
    }
}

/// What one thread needs.
struct BlockWorker {
    encoder: Box<dyn BlockEncoder>,
    buffer: Vec<u8>,
    block_len: usize,
    finds_holes: bool,
    uncompressed: UncompressedParts,
}

impl BlockWorker {
    fn process(&mut self, work: Work<'_>) -> Result<StoredBlocks> {
        match work {
            Work::Data { file, offset, len } => self.data(file, offset, len),
            Work::Hole { file, offset, len } => {
                let digest = PieceDigest {
                    inode: file.place,
                    offset,
                    len: usize::try_from(len).unwrap_or(usize::MAX),
                    hash: None,
                };
                Ok(StoredBlocks::Hole { digest, block_count: len.div_ceil(self.block_len as u64) })
            }
            Work::Fragment(tails) => self.fragment(&tails),
        }
    }

    fn data(&mut self, file: BlockFile<'_>, offset: u64, len: usize) -> Result<StoredBlocks> {
        self.read(file.content, offset, 0, len)?;
        let Self { encoder, buffer, block_len, finds_holes, uncompressed } = self;
        let content = &buffer[..len];
        let digest = PieceDigest { inode: file.place, offset, len, hash: Some(xxh64(content, 0)) };
        let (mut words, mut bytes, mut hole_bytes) = (Vec::with_capacity(len.div_ceil(*block_len)), Vec::new(), 0);
        for block in content.chunks(*block_len) {
            if *finds_holes && block.iter().all(|byte| *byte == 0) {
                hole_bytes += block.len() as u64;
                words.push(0);
            } else {
                words.push(append_block(encoder.as_mut(), uncompressed.data, block, &mut bytes)?);
            }
        }
        Ok(StoredBlocks::Data { digest, words, bytes, hole_bytes })
    }

    fn fragment(&mut self, tails: &[Tail<'_>]) -> Result<StoredBlocks> {
        let mut at = 0;
        let mut digests = Vec::with_capacity(tails.len());
        for tail in tails {
            self.read(tail.file.content, tail.offset, at, tail.len)?;
            let hash = Some(xxh64(&self.buffer[at..at + tail.len], 0));
            digests.push(PieceDigest { inode: tail.file.place, offset: tail.offset, len: tail.len, hash });
            at += tail.len;
        }
        let mut bytes = Vec::new();
        let is_uncompressed = self.uncompressed.fragments;
        let word = append_block(self.encoder.as_mut(), is_uncompressed, &self.buffer[..at], &mut bytes)?;
        Ok(StoredBlocks::Fragment { tails: digests, word, bytes })
    }

    /// Reads a part of a file to this place of the buffer.
    fn read(&mut self, content: &Content, offset: u64, at: usize, len: usize) -> Result<()> {
        lengthen(&mut self.buffer, at + len)?;
        let open = content.open()?;
        open.read_at(offset, &mut self.buffer[at..at + len])?;
        open.check_unchanged()
    }
}

/// Appends a block in its stored form to `output`; returns its size word.
fn append_block(
    encoder: &mut dyn BlockEncoder,
    is_uncompressed: bool,
    block: &[u8],
    output: &mut Vec<u8>,
) -> Result<u32> {
    let start = output.len();
    if !is_uncompressed && block.len() >= COMPRESSED_LEN_MIN {
        // A block that does not shrink is stored as it is.
        lengthen(output, start + block.len() - 1)?;
        let len = encoder.encode(block, &mut output[start..])?;
        output.truncate(start + len.unwrap_or(0));
        if let Some(len) = len {
            return Ok(u32::try_from(len).unwrap_or(u32::MAX));
        }
    }
    output.extend_from_slice(block);
    Ok(u32::try_from(block.len()).unwrap_or(u32::MAX) | BLOCK_UNCOMPRESSED)
}
