//! The encoder of metadata: pure functions from values to on-disk bytes.
//!
//! The caller decides placement and compression. Arguments must be within the format's limits, which each function
//! states.

mod chunk_map;
mod compressed_map;
mod directory;
mod inode;
mod launch_list;
mod superblock;
mod xattr;

pub use chunk_map::{Chunk, ChunkMap, Chunks};
pub use compressed_map::{CompressedExtent, CompressedMap, ExtentKind, MapForm, whole_fragment_map};
pub use directory::{DirectoryEntry, directory_bytes, directory_len};
pub use inode::{InodeData, InodeForm, InodeRecord, InodeRules};
pub use launch_list::{launch_list, launch_profile};
pub use superblock::{Device, SuperBlockRecord, superblock_bytes, superblock_len};
pub use xattr::{LongPrefix, StoredName, filter_bit, xattr_body, xattr_entry};

/// The lower 32 bits of a number.
fn low_u32(number: u64) -> u32 {
    u32::try_from(number & u64::from(u32::MAX)).unwrap_or(u32::MAX)
}

/// Bits 32 to 47 of a number.
fn high_u16(number: u64) -> u16 {
    u16::try_from(number >> 32 & u64::from(u16::MAX)).unwrap_or(u16::MAX)
}
