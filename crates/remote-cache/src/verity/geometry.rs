//! The positions of the levels of a hash tree.

use crate::{
    DIGEST_BYTES, VerityRoot,
    verity::{BadVerity, Superblock, superblock::SUPERBLOCK_BYTES},
};

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
        let hashes_log2 = superblock.hash_block_log2 - DIGEST_LOG2;
        let mut counts = Vec::new();
        let mut blocks = superblock.data_blocks;
        while blocks > 1 {
            blocks = blocks.div_ceil(1 << hashes_log2);
            counts.push(blocks);
        }
        let mut end = hash_offset.checked_add(hash_block_bytes.max(SUPERBLOCK_BYTES as u64));
        let mut levels = Vec::new();
        for blocks in counts.into_iter().rev() {
            let Some(offset) = end else { break };
            levels.push(Level { offset, blocks });
            end = blocks.checked_mul(hash_block_bytes).and_then(|bytes| offset.checked_add(bytes));
        }
        levels.reverse();
        match end {
            Some(end) => Ok(Self { superblock, levels, end }),
            None => bad("it ends past all offsets"),
        }
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
