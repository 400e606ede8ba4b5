//! Chunk-based inodes (docs/format/erofs.md, Chunks).

use super::raw_structs;

/// Chunk format: log2 of the number of blocks in a chunk.
pub const CHUNK_FORMAT_BLKBITS_MASK: u16 = 0x1f;
/// Chunk format: the map consists of [`InodeChunkIndex`] records rather than 4-byte block numbers.
pub const CHUNK_FORMAT_INDEXES: u16 = 0x20;
/// Chunk format: the upper 16 address bits of the records are valid.
pub const CHUNK_FORMAT_48BIT: u16 = 0x40;
/// All known bits of the chunk format.
pub const CHUNK_FORMAT_ALL: u16 = (CHUNK_FORMAT_48BIT << 1) - 1;
/// The size of a 4-byte map entry.
pub const BLOCK_MAP_ENTRY_SIZE: u64 = 4;
/// The 32-bit block number of a hole.
pub const NULL_ADDR_32: u32 = u32::MAX;
/// The 48-bit block number of a hole.
pub const NULL_ADDR_48: u64 = (1 << 48) - 1;

raw_structs! {
    /// The location of a chunk.
    pub struct InodeChunkIndex: 8 {
        /// The upper 16 bits of the first block number.
        pub startblk_hi: u16,
        /// The device; 0 for the image itself or for the unified address space.
        pub device_id: u16,
        /// The lower 32 bits of the first block number.
        pub startblk_lo: u32,
    }
}
