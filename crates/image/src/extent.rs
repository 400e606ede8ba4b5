//! Where the bytes of a file are.

use crate::{ByteRange, DeviceId, StoredBlock};

/// A run of a file's bytes and where they come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// The bytes of the file.
    pub range: ByteRange,
    /// Where they come from.
    pub data: ExtentData,
}

/// Where the bytes of an [`Extent`] come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExtentData {
    /// Nowhere: they are zero.
    Hole,
    /// They stand in the image as they are.
    Plain {
        /// The source they lie in.
        device: DeviceId,
        /// The first of them in that source.
        offset: u64,
    },
    /// They are part of a block that must be decoded.
    Encoded {
        /// The block.
        block: StoredBlock,
        /// How many decoded bytes precede the first of them. Where the block turns out to end before the last of them,
        /// the image is corrupt.
        skip: u32,
    },
}
