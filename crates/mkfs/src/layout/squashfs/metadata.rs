//! Metadata blocks: records follow each other in blocks of 8 KiB, each of which is compressed by itself.

use floe_codec::encode::{BlockCompression, BlockEncoder};
use floe_squashfs::format::METADATA_BYTES;

use crate::{
    error::{Error, Result},
    options::SquashfsOptions,
};

/// Set in the length word of an uncompressed metadata block.
const UNCOMPRESSED: u16 = 1 << 15;
/// The decoded length of a block in bytes.
pub(super) const BLOCK_LEN: usize = METADATA_BYTES as usize;
/// The dictionary for a block, in bytes.
const DICTIONARY_BYTES: u32 = METADATA_BYTES;

/// Writes records into metadata blocks.
pub(super) struct MetadataWriter {
    /// `None` stores blocks uncompressed.
    encoder: Option<Box<dyn BlockEncoder>>,
    block: Vec<u8>,
    trial: Vec<u8>,
    written: MetadataBlocks,
}

/// Metadata blocks in their stored form.
#[derive(Default)]
pub(super) struct MetadataBlocks {
    pub(super) stored: Vec<u8>,
    /// The offsets of blocks in the stored form.
    pub(super) starts: Vec<u64>,
    /// The length of the records.
    pub(super) decoded_len: u64,
}

impl MetadataWriter {
    /// Creates a writer without blocks.
    pub(super) fn new(squashfs: &SquashfsOptions, is_uncompressed: bool) -> Result<Self> {
        let compression = match squashfs.compression {
            BlockCompression::Xz { filters, .. } => {
                BlockCompression::Xz { dictionary_bytes: DICTIONARY_BYTES, filters }
            }
            other => other,
        };
        let encoder = if is_uncompressed { None } else { Some(compression.encoder()?) };
        let (block, trial) = (Vec::with_capacity(BLOCK_LEN), vec![0; BLOCK_LEN]);
        Ok(Self { encoder, block, trial, written: MetadataBlocks::default() })
    }

    /// The reference of the next record: the start of its block, shifted by 16 bits, and its offset in the block.
    pub(super) fn reference(&self) -> u64 {
        (self.written.stored.len() as u64) << 16 | self.block.len() as u64
    }

    /// How many bytes of records were written.
    pub(super) fn decoded_len(&self) -> u64 {
        self.written.decoded_len
    }

    /// Appends bytes of records.
    pub(super) fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        self.written.decoded_len += bytes.len() as u64;
        while !bytes.is_empty() {
            let (head, rest) = bytes.split_at(bytes.len().min(BLOCK_LEN - self.block.len()));
            self.block.extend_from_slice(head);
            bytes = rest;
            if self.block.len() == BLOCK_LEN {
                self.end_block()?;
            }
        }
        Ok(())
    }

    /// Ends the last block.
    pub(super) fn finish(mut self) -> Result<MetadataBlocks> {
        if !self.block.is_empty() {
            self.end_block()?;
        }
        Ok(self.written)
    }

    fn end_block(&mut self) -> Result<()> {
        let Self { encoder, block, trial, written } = self;
        written.starts.push(written.stored.len() as u64);
        let room = trial.get_mut(..block.len() - 1).unwrap_or_default();
        let len = match encoder {
            Some(encoder) if !room.is_empty() => encoder.encode(block, room)?,
            _ => None,
        };
        let (stored, flag) = match len {
            Some(len) => (&trial[..len], 0),
            None => (block.as_slice(), UNCOMPRESSED),
        };
        let too_long = |_| Error::Layout("a metadata block is too long".into());
        let word = u16::try_from(stored.len()).map_err(too_long)? | flag;
        written.stored.extend(word.to_le_bytes());
        written.stored.extend_from_slice(stored);
        block.clear();
        Ok(())
    }
}
