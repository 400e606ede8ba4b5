//! The bytes near a read that prefetch pushes into the page cache.

use floe_image::{ByteRange, Nid, StoredBlock};

use crate::prefetch::controller::StoreRest;

/// An odd multiplier with well-mixed bits.
const HASH_FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// The bytes near a read that prefetch pushes into the page cache.
#[derive(Default, Debug)]
pub(crate) struct Neighbours {
    /// The rest of the blocks that the read decoded or found in memory.
    pub(crate) blocks: Vec<Neighbour>,
    /// The cluster around the read.
    pub(crate) cluster: Option<ByteRange>,
}

/// The part of a file in a block that a read used only in part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Neighbour {
    pub(crate) block: StoredBlock,
    /// The bytes of the file in the block.
    pub(crate) range: ByteRange,
    /// The number of decoded bytes before the first of them.
    pub(crate) skip: u32,
    /// Whether most of the block belongs to other files.
    pub(crate) is_shared: bool,
    pub(crate) when: StoreRest,
}

impl Neighbour {
    /// A hash of the part of the file `nid`.
    pub(crate) fn hash(&self, nid: Nid) -> u64 {
        (nid.0.rotate_left(32) ^ self.range.offset()).wrapping_mul(HASH_FACTOR)
    }

    /// Whether most of `block` belongs to files other than the one whose bytes `range` it contains.
    pub(crate) fn is_shared(range: ByteRange, block: &StoredBlock) -> bool {
        range.len() < u64::from(block.decoded_len.bytes()) / 2
    }
}
