//! Extents: the mapping from file bytes to image bytes.

use crate::{ByteRange, DeviceId, StoredBlock};

/// A run of file bytes with its origin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// The range within the file.
    pub range: ByteRange,
    /// The origin of the bytes.
    pub data: ExtentData,
}

/// The origin of the bytes of an [`Extent`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExtentData {
    /// A hole: the bytes are zero.
    Hole,
    /// The image stores the bytes uncompressed.
    Plain {
        /// The source that contains them.
        device: DeviceId,
        /// The offset of the first byte in that source.
        offset: u64,
    },
    /// The bytes are part of a block that has to be decoded.
    Encoded {
        /// The block.
        block: StoredBlock,
        /// How many decoded bytes precede the extent. If the block ends before the extent does, the image is corrupt.
        skip: u32,
    },
}
