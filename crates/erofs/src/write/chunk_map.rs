//! The maps of chunked files (docs/format/erofs.md, Chunks).

use super::{high_u16, low_u32};
use crate::format::{self, InodeChunkIndex};

/// Where a chunk is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Chunk {
    /// Nowhere: it is all zeros.
    Hole,
    /// In blocks of the image or of a device.
    Blocks {
        /// The device, 0 for the image itself.
        device: u16,
        /// The first block.
        block: u64,
    },
}

/// The map of a chunked file.
#[derive(Clone, Copy, Debug)]
pub struct ChunkMap<'a> {
    /// The chunks in their order.
    pub chunks: &'a [Chunk],
    /// log2 of the number of blocks of a chunk; at most 31.
    pub chunk_blocks_log2: u8,
    /// Whether the map has records of 8 bytes even where 4 would do.
    pub indexes: bool,
}

impl ChunkMap<'_> {
    /// The format word of the inode.
    pub fn format(&self) -> u16 {
        let mut word = u16::from(self.chunk_blocks_log2) & format::CHUNK_FORMAT_BLKBITS_MASK;
        if self.needs_indexes() {
            word |= format::CHUNK_FORMAT_INDEXES;
        }
        if self.is_wide() {
            word |= format::CHUNK_FORMAT_48BIT;
        }
        word
    }

    /// The map, which begins at a multiple of 8 bytes with records of 8 bytes, of 4 with 4-byte ones.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for chunk in self.chunks {
            let (device_id, block) = match *chunk {
                Chunk::Hole if self.is_wide() => (0, format::NULL_ADDR_48),
                Chunk::Hole => (0, u64::from(format::NULL_ADDR_32)),
                Chunk::Blocks { device, block } => (device, block),
            };
            if self.needs_indexes() {
                let (startblk_hi, startblk_lo) = (high_u16(block), low_u32(block));
                bytes.extend(InodeChunkIndex { startblk_hi, device_id, startblk_lo }.to_bytes());
            } else {
                bytes.extend(low_u32(block).to_le_bytes());
            }
        }
        bytes
    }

    /// What the map is aligned to, in bytes.
    pub fn alignment(&self) -> u64 {
        if self.needs_indexes() { 8 } else { format::BLOCK_MAP_ENTRY_SIZE }
    }

    fn needs_indexes(&self) -> bool {
        let other_device = |chunk: &Chunk| matches!(chunk, Chunk::Blocks { device: 1.., .. });
        self.indexes || self.is_wide() || self.chunks.iter().any(other_device)
    }

    fn is_wide(&self) -> bool {
        self.chunks.iter().any(|chunk| matches!(chunk, Chunk::Blocks { block, .. } if *block >= u64::from(u32::MAX)))
    }
}
