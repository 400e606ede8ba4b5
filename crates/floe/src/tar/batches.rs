//! The bytes of an archive, in batches: all CPUs fill one while another is written.

use std::{
    ops::Range,
    sync::mpsc::{Receiver, SyncSender},
};

use floe_image::{ByteRange, Error, Nid, Place};

use super::TarError;
use crate::{Image, ReadRequest};

/// The maximum number of bytes in one read.
const PIECE_LEN: usize = 1 << 20;
/// The minimum length of a batch in bytes, and its pieces for each thread.
const BATCH_LEN_MIN: usize = 8 << 20;
const PIECES_PER_THREAD: usize = 4;

/// Collects the bytes of an archive.
pub(super) struct Batches<'a> {
    image: &'a Image,
    jobs: usize,
    len_max: usize,
    batch: Vec<u8>,
    pieces: Vec<Piece>,
    /// Takes full batches.
    sender: SyncSender<Vec<u8>>,
    /// Gives written ones, to be filled again.
    spare: Receiver<Vec<u8>>,
}

/// A part of the batch that is still to be read.
struct Piece {
    nid: Nid,
    offset: u64,
    place: Range<usize>,
    path: Vec<u8>,
}

impl<'a> Batches<'a> {
    pub(super) fn new(image: &'a Image, jobs: usize, sender: SyncSender<Vec<u8>>, spare: Receiver<Vec<u8>>) -> Self {
        let len_max = jobs.saturating_mul(PIECES_PER_THREAD * PIECE_LEN).max(BATCH_LEN_MIN);
        Self { image, jobs, len_max, batch: Vec::new(), pieces: Vec::new(), sender, spare }
    }

    /// Appends bytes.
    pub(super) fn bytes(&mut self, bytes: &[u8]) -> Result<(), TarError> {
        self.batch.extend_from_slice(bytes);
        if self.batch.len() >= self.len_max { self.flush() } else { Ok(()) }
    }

    /// Appends a range of the file at `path`.
    pub(super) fn content(&mut self, nid: Nid, range: ByteRange, path: &[u8]) -> Result<(), TarError> {
        let mut offset = range.offset();
        while offset < range.end() {
            let len = usize::try_from(range.end() - offset).unwrap_or(usize::MAX).min(PIECE_LEN);
            if !self.batch.is_empty() && self.batch.len() + len > self.len_max {
                self.flush()?;
            }
            let start = self.batch.len();
            self.batch.resize(start + len, 0);
            self.pieces.push(Piece { nid, offset, place: start..start + len, path: path.to_vec() });
            offset += len as u64;
        }
        Ok(())
    }

    /// Reads the pieces, and passes the batch on.
    pub(super) fn flush(&mut self) -> Result<(), TarError> {
        let mut requests = Vec::with_capacity(self.pieces.len());
        let (mut rest, mut at) = (self.batch.as_mut_slice(), 0);
        for piece in &self.pieces {
            let (_, from_piece) = rest.split_at_mut(piece.place.start - at);
            let (output, after) = from_piece.split_at_mut(piece.place.len());
            requests.push(ReadRequest { nid: piece.nid, offset: piece.offset, output });
            (rest, at) = (after, piece.place.end);
        }
        let results = self.image.read_many_on(self.jobs, &mut requests);
        for (piece, result) in self.pieces.drain(..).zip(results) {
            let read = result.and_then(|len| {
                let is_whole = len == piece.place.len();
                if is_whole {
                    Ok(())
                } else {
                    Err(Error::corrupt("file ends before its size", Place::inode(piece.nid)))
                }
            });
            read.map_err(|error| TarError::Content { path: piece.path, error })?;
        }
        let mut next = self.spare.try_recv().unwrap_or_default();
        next.clear();
        // If the writer has ended, its own error counts.
        self.sender.send(std::mem::replace(&mut self.batch, next)).map_err(|_| TarError::Cancelled)
    }
}
