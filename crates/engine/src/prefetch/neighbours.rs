//! The rest of the blocks that a read decoded or found in memory.

use floe_image::{ByteRange, StoredBlock};

use crate::prefetch::controller::StoreRest;

/// The part of a file that a block holds, of which a read wanted only some.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Neighbour {
    pub(crate) block: StoredBlock,
    /// The bytes of the file that the block holds.
    pub(crate) range: ByteRange,
    /// How many decoded bytes precede the first of them.
    pub(crate) skip: u32,
    /// Whether most of the block belongs to other files.
    pub(crate) is_shared: bool,
    pub(crate) when: StoreRest,
}

impl Neighbour {
    /// Whether most of a block belongs to other files than the one that has `range` of it.
    pub(crate) fn is_shared(range: ByteRange, block: &StoredBlock) -> bool {
        range.len() < u64::from(block.decoded_len.bytes()) / 2
    }
}
