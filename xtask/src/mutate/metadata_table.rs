//! A table of a SquashFS image as the bytes that its metadata blocks decode to.

use floe_image::{BlockReader, DecodedLen, DeviceId, Encoding, StoredBlock, StoredLen};
use floe_squashfs::format::METADATA_BYTES;

use super::structures::Structures;

/// What a metadata block decodes to, but for the last of a table.
const BLOCK_BYTES: usize = METADATA_BYTES as usize;
/// What such a block takes where it is stored as it is: its length stands before it.
const STORED_BYTES: usize = BLOCK_BYTES + LENGTH_BYTES;
const LENGTH_BYTES: usize = 2;
/// Set in the length of a block that is stored as it is.
const STORED_AS_IT_IS: u16 = 0x8000;

/// A table of a SquashFS image as the bytes that its metadata blocks decode to.
#[derive(Default)]
pub(super) struct MetadataTable {
    /// All of them.
    pub(super) content: Vec<u8>,
    /// Where each block began in the image, relative to the table.
    block_starts: Vec<u64>,
    /// Where the table begins in the image that is written.
    start: usize,
}

impl MetadataTable {
    /// Reads the blocks between two places of an image; `None` where they do not decode.
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

    /// Where in the content a block begins that began at this place of the image, relative to the table.
    pub(super) fn block_content(&self, block_start: u64) -> Option<usize> {
        let index = self.block_starts.binary_search(&block_start).ok();
        // A table of nothing but empty directories has no block, and is referred to all the same.
        index.map(|index| index * BLOCK_BYTES).or((block_start == 0).then_some(0))
    }

    /// Where in the content the structure is that a reference means.
    pub(super) fn referred(&self, reference: u64) -> Option<usize> {
        Some(self.block_content(reference >> 16)? + (reference & 0xffff) as usize)
    }

    /// The reference that means the same in the image that is written.
    pub(super) fn moved(&self, reference: u64) -> Option<u64> {
        Some(self.moved_block(reference >> 16)? << 16 | reference & 0xffff)
    }

    /// Where the block begins in the image that is written, relative to the table.
    pub(super) fn moved_block(&self, block_start: u64) -> Option<u64> {
        Some((self.block_content(block_start)? / BLOCK_BYTES * STORED_BYTES) as u64)
    }

    /// Appends the blocks to an image, each stored as it is; gives where they begin.
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

    /// Adds a structure that is at a place of the content, unless it goes on in the next block.
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

    /// Adds a run of numbers, as far as it is in one block.
    pub(super) fn add_words(&self, found: &mut Structures, kind: &'static str, at: usize, len: usize, word: usize) {
        found.add_words(kind, self.place(at), len.min(BLOCK_BYTES - at % BLOCK_BYTES), word);
    }

    /// Adds the lengths before the blocks.
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
