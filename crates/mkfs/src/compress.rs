//! Reads and compresses files on several threads.

pub(crate) mod blocks;
pub(crate) mod piece;
pub(crate) mod piece_digests;
pub(crate) mod segment;

use floe_codec::release_freed_memory;
use piece::{Piece, PieceOutput, SegmentLengths};
use segment::SegmentCompressor;

use crate::{
    content::FilesToStore,
    error::Result,
    options::{Coding, Options},
    progress::{Phase, Progress, report},
    workers,
};

/// Pieces are grouped into jobs until they have this many bytes.
const JOB_BYTES: usize = 1 << 20;
/// The maximum number of pieces of a job.
const JOB_PIECES: usize = 1024;
/// The memory per piece besides its bytes.
const PIECE_COST: usize = 768;

/// Reads and compresses files in pieces. `put` receives the pieces in order, on the calling thread.
pub(crate) fn compress<'a>(
    to_store: &'a FilesToStore<'a>,
    phase: Phase,
    options: &Options,
    progress: &mut dyn Progress,
    mut put: impl FnMut(PieceOutput<'_>) -> Result<()>,
) -> Result<()> {
    if options.has_large_pclusters() {
        release_freed_memory();
    }
    let total = to_store.iter().map(|file| file.content.size()).sum();
    let lengths = if phase == Phase::Packed { SegmentLengths::Tapered } else { SegmentLengths::Even };
    let splits = &to_store.splits;
    let pieces = to_store.iter().flat_map(|file| Piece::all_of(file, splits.of(file.place), lengths, options));
    let mut pieces = pieces.peekable();
    let next = || {
        let (mut job, mut bytes) = (Vec::new(), 0);
        while job.len() < JOB_PIECES
            && let Some(piece) = pieces.next_if(|piece| bytes == 0 || bytes + piece.read_len() <= JOB_BYTES)
        {
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
        Ok(move |job: Vec<Piece<'a>>| -> Result<Vec<PieceOutput<'a>>> {
            job.iter().map(|piece| piece.process(&mut compressors, &mut buffer)).collect()
        })
    };
    let mut done = 0;
    workers::run(options.jobs, options.memory_len(), worker, next, |outputs: Vec<PieceOutput<'a>>| {
        for output in outputs {
            done += output.len as u64;
            put(output)?;
        }
        report(progress, phase, done, total)
    })
}

/// The compressors of one thread, created on first use.
pub(crate) struct Compressors<'a> {
    options: &'a Options,
    codings: Vec<Coding>,
    made: Vec<Option<SegmentCompressor>>,
}

impl<'a> Compressors<'a> {
    /// Creates an empty set.
    pub(crate) fn new(options: &'a Options) -> Self {
        Self { options, codings: options.codings(), made: Vec::new() }
    }

    /// The compressor for the coding with this number; `None` without a coding.
    pub(crate) fn of(&mut self, coding: Option<usize>) -> Result<Option<&mut SegmentCompressor>> {
        let Some((number, coding)) = coding.and_then(|number| Some((number, self.codings.get(number)?))) else {
            return Ok(None);
        };
        self.made.resize_with(self.codings.len(), || None);
        let made = &mut self.made[number];
        if made.is_none() {
            *made = Some(SegmentCompressor::new(self.options, *coding)?);
        }
        Ok(made.as_mut())
    }
}
