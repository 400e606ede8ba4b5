//! Reads of metadata, with a cache of one entry.

use floe_image::{Bytes, Error, Nid, Place, Result};

use super::parameters::{Parameters, Space};

/// The metadata of an open image.
///
/// Reading the metabox maps an inode, and mapping reads metadata. Inodes and layouts therefore know only this trait; its
/// implementation, which maps, is above them.
pub(super) trait Metadata {
    /// What the superblock and the tables behind it state.
    fn parameters(&self) -> &Parameters;

    /// `len` bytes of metadata from `position` on, read on behalf of inode `nid`. `len` is at most
    /// [`BlockReader::STORED_LEN_MAX`](floe_image::BlockReader).
    ///
    /// # Errors
    /// The bytes are past the end or cannot be read, or the metabox breaks the format.
    fn metadata(&self, space: Space, position: u64, len: usize, nid: Nid) -> Result<Bytes>;
}

/// The size and alignment of metadata reads in bytes, for every block size: an inode and its index take a few hundred
/// bytes.
const PIECE_BYTES: u64 = 4096;

/// Keeps the last piece of metadata that was read, so that reads near it need no further access.
pub(super) struct Window<'image> {
    metadata: &'image dyn Metadata,
    parameters: &'image Parameters,
    space: Space,
    nid: Nid,
    position: u64,
    bytes: Bytes,
    /// The number of an extent, and the sum of the stored lengths before it.
    length_sum: (u64, u64),
}

impl<'image> Window<'image> {
    /// A window over `space`, on behalf of inode `nid`.
    pub(super) fn new(metadata: &'image dyn Metadata, space: Space, nid: Nid) -> Self {
        Self {
            metadata,
            parameters: metadata.parameters(),
            space,
            nid,
            position: 0,
            bytes: Bytes::new(),
            length_sum: (0, 0),
        }
    }

    /// The space that the window reads.
    pub(super) fn space(&self) -> Space {
        self.space
    }

    /// The parameters of the image.
    pub(super) fn parameters(&self) -> &'image Parameters {
        self.parameters
    }

    /// The `len` bytes from `position` on: a few bytes, at most some blocks.
    ///
    /// # Errors
    /// As for [`Metadata::metadata`].
    pub(super) fn read(&mut self, position: u64, len: usize) -> Result<&[u8]> {
        if self.held(position, len).is_none() {
            let place = Place::inode_at(self.nid, position);
            let past_end = || Error::corrupt("metadata past the end of the address space", place);
            let end = u64::try_from(len).ok().and_then(|len| position.checked_add(len)).ok_or_else(past_end)?;
            let (from, space_len) = (position - position % PIECE_BYTES, self.parameters.space_len(self.space));
            let to = end.checked_next_multiple_of(PIECE_BYTES).filter(|_| end <= space_len);
            let to = to.map_or(end, |to| to.min(space_len));
            let span = usize::try_from(to.saturating_sub(from)).map_err(|_| past_end())?;
            self.bytes = self.metadata.metadata(self.space, from, span, self.nid)?;
            self.position = from;
        }
        self.held(position, len).ok_or(Error::corrupt("metadata is short", Place::inode_at(self.nid, position)))
    }

    /// The array of `N` bytes from `position` on.
    ///
    /// # Errors
    /// As for [`Metadata::metadata`].
    pub(super) fn array<const N: usize>(&mut self, position: u64) -> Result<[u8; N]> {
        let place = Place::inode_at(self.nid, position);
        self.read(position, N)?.first_chunk().copied().ok_or(Error::corrupt("metadata is short", place))
    }

    /// The last kept sum of stored lengths if it ends at or before extent `number`, and the number of its extent; else
    /// 0 and 0.
    pub(super) fn length_sum_before(&self, number: u64) -> (u64, u64) {
        if self.length_sum.0 <= number { self.length_sum } else { (0, 0) }
    }

    /// Keeps the sum of the stored lengths before extent `number` for the next lookup, which is often the next extent.
    pub(super) fn keep_length_sum(&mut self, number: u64, sum: u64) {
        self.length_sum = (number, sum);
    }

    fn held(&self, position: u64, len: usize) -> Option<&[u8]> {
        let start = usize::try_from(position.checked_sub(self.position)?).ok()?;
        self.bytes.get(start..start.checked_add(len)?)
    }
}
