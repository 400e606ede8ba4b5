//! The decoded content of a SquashFS metadata table.

use floe_image::{BlockReader, DecodedLen, DeviceId, Encoding, StoredBlock, StoredLen};
use floe_squashfs::format::METADATA_BYTES;

use super::structures::Structures;

/// The decoded length of a metadata block; the last block of a table may be shorter.
const BLOCK_BYTES: usize = METADATA_BYTES as usize;
/// The stored length of an uncompressed block, including its length word.
const STORED_BYTES: usize = BLOCK_BYTES + LENGTH_BYTES;
const LENGTH_BYTES: usize = 2;
/// Set in the length word of an uncompressed block.
const STORED_AS_IT_IS: u16 = 0x8000;

/// The decoded content of a SquashFS metadata table.
#[derive(Default)]
pub(super) struct MetadataTable {
    /// The content.
    pub(super) content: Vec<u8>,
    /// The start of each block in the original image, relative to the table.
    block_starts: Vec<u64>,
    /// The start of the table in the new image.
    start: usize,
}

impl MetadataTable {
    /// Reads the blocks in a range of an image; `None` if they do not decode.
    pub(super) fn read(reader: &dyn BlockReader, encoding: Encoding, start: u64, end: u64) -> Option<Self> {
        let mut table = Self::default();
        let mut position = start;
        while position < end {
            let block = StoredBlock {
                device: DeviceId(0),
                offset: position,
                stored_len: StoredLen::Prefixed,
                decoded_len: DecodedLen::AtMost(METADATA_BYTES),
                encoding,
            };
            let decoded = reader.decoded(&block).ok()?;
            table.block_starts.push(position - start);
            table.content.extend_from_slice(&decoded.bytes);
            position = decoded.stored_end;
        }
        let is_full = table.content.len().div_ceil(BLOCK_BYTES) == table.block_starts.len();
        is_full.then_some(table)
    }

    /// The offset in the content of a block that started at this offset of the original table.
    pub(super) fn block_content(&self, block_start: u64) -> Option<usize> {
        let index = self.block_starts.binary_search(&block_start).ok();
        // A table for empty directories only has no blocks, but is referred to nevertheless.
        index.map(|index| index * BLOCK_BYTES).or((block_start == 0).then_some(0))
    }

    /// The offset in the content for a reference.
    pub(super) fn referred(&self, reference: u64) -> Option<usize> {
        Some(self.block_content(reference >> 16)? + (reference & 0xffff) as usize)
    }

    /// The corresponding reference in the new image.
    pub(super) fn moved(&self, reference: u64) -> Option<u64> {
        Some(self.moved_block(reference >> 16)? << 16 | reference & 0xffff)
    }

    /// The start of the block in the new image, relative to the table.
    pub(super) fn moved_block(&self, block_start: u64) -> Option<u64> {
        Some((self.block_content(block_start)? / BLOCK_BYTES * STORED_BYTES) as u64)
    }

    /// Appends the blocks uncompressed to an image; returns their positions.
    pub(super) fn write(&mut self, image: &mut Vec<u8>) -> Vec<u64> {
        self.start = image.len();
        let mut starts = Vec::new();
        for block in self.content.chunks(BLOCK_BYTES) {
            starts.push(image.len() as u64);
            image.extend_from_slice(&(STORED_AS_IT_IS | block.len() as u16).to_le_bytes());
            image.extend_from_slice(block);
        }
        starts
    }

    /// Adds a structure at an offset of the content, unless it crosses a block boundary.
    pub(super) fn add(
        &self,
        found: &mut Structures,
        kind: &'static str,
        at: usize,
        fields: &'static [(&'static str, usize)],
    ) {
        let len: usize = fields.iter().map(|(_, size)| size).sum();
        if at % BLOCK_BYTES + len <= BLOCK_BYTES {
            found.add(kind, self.place(at), fields);
        }
    }

    /// Adds a run of numbers up to the end of its block.
    pub(super) fn add_words(&self, found: &mut Structures, kind: &'static str, at: usize, len: usize, word: usize) {
        found.add_words(kind, self.place(at), len.min(BLOCK_BYTES - at % BLOCK_BYTES), word);
    }

    /// Adds the length words of the blocks.
    pub(super) fn add_lengths(&self, found: &mut Structures) {
        for index in 0..self.content.len().div_ceil(BLOCK_BYTES) {
            found.add_words(
                "metadata block length",
                (self.start + index * STORED_BYTES) as u64,
                LENGTH_BYTES,
                LENGTH_BYTES,
            );
        }
    }

    fn place(&self, at: usize) -> u64 {
        (self.start + at / BLOCK_BYTES * STORED_BYTES + LENGTH_BYTES + at % BLOCK_BYTES) as u64
    }
}
