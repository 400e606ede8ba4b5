//! The superblock of a hash tree, and the positions of its levels.

use std::fmt;

use crate::{CHUNK_BYTES, DIGEST_BYTES, VerityRoot};

/// The number of meaningful bytes of the superblock, which fills the first hash block.
pub(crate) const SUPERBLOCK_BYTES: usize = 512;

/// The magic number of a superblock.
const MAGIC: [u8; 8] = *b"verity\0\0";

/// The maximum size of a block in bytes: as much as is verified at a time.
pub(crate) const BLOCK_BYTES_MAX: u32 = CHUNK_BYTES as u32;

/// The maximum length of a salt, in bytes.
const SALT_BYTES_MAX: usize = 256;

/// The offsets of the fields.
mod at {
    pub(super) const VERSION: usize = 8;
    pub(super) const HASH_TYPE: usize = 12;
    pub(super) const UUID: usize = 16;
    pub(super) const ALGORITHM: usize = 32;
    pub(super) const DATA_BLOCK_SIZE: usize = 64;
    pub(super) const HASH_BLOCK_SIZE: usize = 68;
    pub(super) const DATA_BLOCKS: usize = 72;
    pub(super) const SALT_SIZE: usize = 80;
    pub(super) const SALT: usize = 88;
}

/// Why a superblock or its tree is invalid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadVerity {
    /// The violated rule.
    pub rule: &'static str,
}

impl fmt::Display for BadVerity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "not a usable dm-verity tree: {}", self.rule)
    }
}

impl std::error::Error for BadVerity {}

/// The superblock of a hash tree of version 1, type 1, with SHA-256: each hash covers the salt followed by the block.
///
/// No hash covers the superblock itself. A wrong salt or block size makes every block fail. A wrong number of blocks
/// could present hash blocks as data; the pinned offset of the tree reveals it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Superblock {
    /// The log2 of the size of data blocks in bytes.
    pub(crate) data_block_log2: u32,
    /// The log2 of the size of hash blocks in bytes.
    pub(crate) hash_block_log2: u32,
    /// The number of data blocks.
    pub(crate) data_blocks: u64,
    /// The bytes that precede each block in its hash.
    pub(crate) salt: Vec<u8>,
    /// The UUID of the tree.
    pub(crate) uuid: [u8; 16],
}

impl Superblock {
    /// Parses a superblock.
    ///
    /// # Errors
    /// The violated rule.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, BadVerity> {
        let bad = |rule| Err(BadVerity { rule });
        let Some(bytes) = bytes.first_chunk::<SUPERBLOCK_BYTES>() else {
            return bad("it ends within its superblock");
        };
        let word = |at: usize| bytes[at..at + 4].try_into().map_or(0, u32::from_le_bytes);
        if bytes[..8] != MAGIC {
            return bad("there is no superblock at the hash offset");
        }
        if word(at::VERSION) != 1 {
            return bad("its version is not 1");
        }
        if word(at::HASH_TYPE) != 1 {
            return bad("its hash type is not 1");
        }
        let algorithm = &bytes[at::ALGORITHM..at::DATA_BLOCK_SIZE];
        if algorithm.strip_prefix(b"sha256").is_none_or(|rest| rest.iter().any(|byte| *byte != 0)) {
            return bad("its algorithm is not sha256");
        }
        let sizes = 512..=BLOCK_BYTES_MAX;
        let log2_of = |size: u32| (size.is_power_of_two() && sizes.contains(&size)).then(|| size.ilog2());
        let (Some(data_block_log2), Some(hash_block_log2)) =
            (log2_of(word(at::DATA_BLOCK_SIZE)), log2_of(word(at::HASH_BLOCK_SIZE)))
        else {
            return bad("its block sizes are not powers of two from 512 bytes to 16 KiB");
        };
        let data_blocks = bytes[at::DATA_BLOCKS..at::SALT_SIZE].try_into().map_or(0, u64::from_le_bytes);
        let salt_len = usize::from(u16::from_le_bytes([bytes[at::SALT_SIZE], bytes[at::SALT_SIZE + 1]]));
        if salt_len > SALT_BYTES_MAX {
            return bad("its salt is longer than 256 bytes");
        }
        let salt = bytes[at::SALT..at::SALT + salt_len].to_vec();
        let uuid = bytes[at::UUID..at::ALGORITHM].try_into().unwrap_or_default();
        Ok(Self { data_block_log2, hash_block_log2, data_blocks, salt, uuid })
    }

    /// The encoded form, which [`Superblock::parse`] parses. The salt must not be longer than 256 bytes.
    pub(crate) fn to_bytes(&self) -> [u8; SUPERBLOCK_BYTES] {
        let mut bytes = [0; SUPERBLOCK_BYTES];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, &MAGIC);
        put(at::VERSION, &1_u32.to_le_bytes());
        put(at::HASH_TYPE, &1_u32.to_le_bytes());
        put(at::UUID, &self.uuid);
        put(at::ALGORITHM, b"sha256");
        put(at::DATA_BLOCK_SIZE, &(1_u32 << self.data_block_log2).to_le_bytes());
        put(at::HASH_BLOCK_SIZE, &(1_u32 << self.hash_block_log2).to_le_bytes());
        put(at::DATA_BLOCKS, &self.data_blocks.to_le_bytes());
        put(at::SALT_SIZE, &u16::try_from(self.salt.len()).unwrap_or(u16::MAX).to_le_bytes());
        put(at::SALT, &self.salt);
        bytes
    }
}

/// The log2 of the size of a digest in bytes.
const DIGEST_LOG2: u32 = DIGEST_BYTES.ilog2();

/// The hash blocks of one level, which are contiguous.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Level {
    /// The offset of the first one in the object.
    pub(crate) offset: u64,
    /// The number of blocks.
    pub(crate) blocks: u64,
}

/// The positions of the levels of a hash tree. The topmost level, of one block, comes first in the object; the leaves
/// come last. The tree of a single data block has no levels: the root hash is the hash of that block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Geometry {
    pub(crate) superblock: Superblock,
    /// From the leaves up.
    pub(crate) levels: Vec<Level>,
    /// The end of the tree.
    pub(crate) end: u64,
}

impl Geometry {
    /// The tree described by a superblock at `hash_offset`.
    pub(crate) fn new(superblock: Superblock, hash_offset: u64) -> Result<Self, BadVerity> {
        let bad = |rule| Err(BadVerity { rule });
        if superblock.data_blocks == 0 {
            return bad("it covers no data");
        }
        // This check also prevents a wrong number of blocks from shifting the levels.
        if superblock.data_blocks.checked_mul(1 << superblock.data_block_log2) != Some(hash_offset) {
            return bad("its data do not end at the hash offset");
        }
        let hash_block_bytes = 1_u64 << superblock.hash_block_log2;
        if !hash_offset.is_multiple_of(hash_block_bytes) {
            return bad("the hash offset is not a multiple of the size of hash blocks");
        }
        let start = hash_offset.checked_add(hash_block_bytes.max(SUPERBLOCK_BYTES as u64));
        Self::behind(superblock, start).ok_or(BadVerity { rule: "it ends past all offsets" })
    }

    /// The tree beside an image of `data_len` bytes, as [`HashTree`](crate::HashTree) describes it. Readers see it behind the
    /// image.
    pub(crate) fn beside(data_len: u64) -> Self {
        let superblock = Superblock {
            data_block_log2: CHUNK_BYTES.ilog2(),
            hash_block_log2: 12,
            data_blocks: data_len.div_ceil(CHUNK_BYTES),
            salt: Vec::new(),
            uuid: [0; 16],
        };
        let none = Self { superblock: superblock.clone(), levels: Vec::new(), end: data_len };
        Self::behind(superblock, Some(data_len)).unwrap_or(none)
    }

    /// The tree whose levels begin at `start`; `None` if it ends past all offsets.
    fn behind(superblock: Superblock, start: Option<u64>) -> Option<Self> {
        let hash_block_bytes = 1_u64 << superblock.hash_block_log2;
        let hashes_log2 = superblock.hash_block_log2 - DIGEST_LOG2;
        let mut counts = Vec::new();
        let mut blocks = superblock.data_blocks;
        while blocks > 1 {
            blocks = blocks.div_ceil(1 << hashes_log2);
            counts.push(blocks);
        }
        let mut end = start;
        let mut levels = Vec::new();
        for blocks in counts.into_iter().rev() {
            let Some(offset) = end else { break };
            levels.push(Level { offset, blocks });
            end = blocks.checked_mul(hash_block_bytes).and_then(|bytes| offset.checked_add(bytes));
        }
        levels.reverse();
        Some(Self { superblock, levels, end: end? })
    }

    /// The tree of an object of this length, described by the superblock in `bytes`.
    pub(crate) fn of_object(bytes: &[u8], root: &VerityRoot, object_len: u64) -> Result<Self, BadVerity> {
        let geometry = Self::new(Superblock::parse(bytes)?, root.hash_offset)?;
        if geometry.end > object_len {
            return Err(BadVerity { rule: "it ends past the end of the object" });
        }
        Ok(geometry)
    }

    /// The size of a hash block in bytes.
    pub(crate) const fn hash_block_bytes(&self) -> usize {
        1 << self.superblock.hash_block_log2
    }

    /// The log2 of the number of hashes in a hash block.
    pub(crate) const fn hashes_log2(&self) -> u32 {
        self.superblock.hash_block_log2 - DIGEST_LOG2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn superblocks_are_read_as_written_and_wrong_ones_refused() {
        let sound =
            Superblock { data_block_log2: 12, hash_block_log2: 9, data_blocks: 77, salt: vec![9; 256], uuid: [3; 16] };
        let bytes = sound.to_bytes();
        assert_eq!(Superblock::parse(&bytes), Ok(sound));
        for (offset, value, rule) in [
            (0, b'V', "there is no superblock at the hash offset"),
            (8, 2, "its version is not 1"),
            (12, 0, "its hash type is not 1"),
            (38, b'0', "its algorithm is not sha256"),
            (37, b'7', "its algorithm is not sha256"),
            (64, 1, "its block sizes are not powers of two from 512 bytes to 16 KiB"),
            (70, 1, "its block sizes are not powers of two from 512 bytes to 16 KiB"),
            (80, 1, "its salt is longer than 256 bytes"),
        ] {
            let mut bytes = bytes;
            bytes[offset] = value;
            assert_eq!(Superblock::parse(&bytes), Err(BadVerity { rule }), "byte {offset}");
        }
        assert_eq!(Superblock::parse(&bytes[..511]), Err(BadVerity { rule: "it ends within its superblock" }));
    }

    fn geometry(data_blocks: u64, block_log2: u32, hash_offset: u64) -> Result<Geometry, BadVerity> {
        let superblock = Superblock {
            data_block_log2: block_log2,
            hash_block_log2: block_log2,
            data_blocks,
            salt: Vec::new(),
            uuid: [0; 16],
        };
        Geometry::new(superblock, hash_offset)
    }

    #[test]
    fn levels_are_at_the_offsets_of_the_kernel() {
        for (data_blocks, block_log2, levels) in [
            (1, 12, vec![]),
            (2, 12, vec![(3, 1)]),
            (128, 12, vec![(129, 1)]),
            (129, 12, vec![(131, 2), (130, 1)]),
            (128 * 128 + 1, 12, vec![(16_389, 129), (16_387, 2), (16_386, 1)]),
            (17, 9, vec![(19, 2), (18, 1)]),
        ] {
            let geometry = geometry(data_blocks, block_log2, data_blocks << block_log2).expect("sound");
            let found: Vec<_> =
                geometry.levels.iter().map(|level| (level.offset >> block_log2, level.blocks)).collect();
            assert_eq!(found, levels, "{data_blocks} blocks");
        }
    }

    #[test]
    fn impossible_trees_are_refused() {
        for (data_blocks, block_log2, hash_offset, rule) in [
            (0, 12, 0, "it covers no data"),
            (2, 12, 4096, "its data do not end at the hash offset"),
            (1 << 60, 12, 0, "its data do not end at the hash offset"),
            (u64::MAX >> 12, 12, u64::MAX - 4095, "it ends past all offsets"),
        ] {
            assert_eq!(geometry(data_blocks, block_log2, hash_offset), Err(BadVerity { rule }), "{data_blocks}");
        }
    }
}
