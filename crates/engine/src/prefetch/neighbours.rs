//! The rest of the blocks that a read decoded.

use floe_image::{ByteRange, StoredBlock};

/// The part of a file that a block holds, of which a read wanted only some.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Neighbour {
    pub(crate) block: StoredBlock,
    /// The bytes of the file that the block holds.
    pub(crate) range: ByteRange,
    /// How many decoded bytes precede the first of them.
    pub(crate) skip: u32,
}

impl Neighbour {
    /// Whether most of the block belongs to other files.
    pub(crate) fn is_shared(&self) -> bool {
        self.range.len() < u64::from(self.block.decoded_len.bytes()) / 2
    }
}
