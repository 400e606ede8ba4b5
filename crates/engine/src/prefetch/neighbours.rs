//! Blocks of which a read wanted only a part.

use floe_image::{ByteRange, StoredBlock};

use crate::prefetch::controller::StoreRest;

/// The part of a file in a block of which a read wanted only some bytes.
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
    /// Whether most of a block belongs to other files than the one with the bytes `range` in it.
    pub(crate) fn is_shared(range: ByteRange, block: &StoredBlock) -> bool {
        range.len() < u64::from(block.decoded_len.bytes()) / 2
    }
}
