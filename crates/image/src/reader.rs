//! How a format reads its metadata.

use std::sync::Arc;

use bytes::Bytes;

use crate::{DeviceId, Error, ImageSource, Result, StoredBlock};

/// A decoded block and where the next one begins.
#[derive(Clone, Debug)]
pub struct DecodedBlock {
    /// The data.
    pub bytes: Bytes,
    /// The first byte of the source after the block's stored bytes.
    pub stored_end: u64,
}

/// Gives a format its metadata, through the engine's caches. Made for small and repeated reads; file data does not come
/// this way.
pub trait BlockReader: Send + Sync {
    /// How many sources there are; the image itself is always one.
    fn device_count(&self) -> u16;

    /// How many bytes a source has.
    ///
    /// # Errors
    /// There is no such source.
    fn device_len(&self, device: DeviceId) -> Result<u64>;

    /// The `len` bytes of the image from `offset` on. `len` is at most `<dyn BlockReader>::STORED_LEN_MAX`.
    ///
    /// # Errors
    /// The source cannot be read or ends before; `len` is beyond the limit.
    fn stored(&self, device: DeviceId, offset: u64, len: usize) -> Result<Bytes>;

    /// The decoded bytes of a block, all of them.
    ///
    /// # Errors
    /// The source cannot be read or ends before; the stored bytes do not decode to the length that the block says.
    fn decoded(&self, block: &StoredBlock) -> Result<DecodedBlock>;

    /// Adds a source that is made of other ones, and gives the number under which extents may name it from now on. It
    /// is not counted by [`BlockReader::device_count`], and reading it may call this reader again.
    ///
    /// # Errors
    /// The reader cannot have such sources.
    fn add_derived(&self, source: Arc<dyn ImageSource>) -> Result<DeviceId> {
        let _ = source;
        Err(Error::unsupported("sources that are made of other ones"))
    }
}

impl dyn BlockReader {
    /// The most bytes that one call of [`BlockReader::stored`] gives: 1 MiB.
    pub const STORED_LEN_MAX: usize = 1 << 20;
}
