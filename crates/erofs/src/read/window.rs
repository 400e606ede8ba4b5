//! A one-entry cache of metadata.

use floe_image::{Bytes, Error, Nid, Place, Result};

use super::{
    block_size::BlockSize,
    volume::{Space, Volume},
};

/// The size and alignment of metadata reads in bytes, for every block size: an inode and its index take a few hundred
/// bytes.
const PIECE_BYTES: u64 = 4096;

/// Keeps the last piece of metadata that was read, so that reads near it need no further access.
pub(super) struct Window<'volume> {
    volume: &'volume Volume,
    space: Space,
    nid: Nid,
    position: u64,
    bytes: Bytes,
    /// The number of an extent, and the sum of the stored lengths before it.
    length_sum: (u64, u64),
}

impl<'volume> Window<'volume> {
    /// A window over `space`, on behalf of inode `nid`.
    pub(super) fn new(volume: &'volume Volume, space: Space, nid: Nid) -> Self {
        Self { volume, space, nid, position: 0, bytes: Bytes::new(), length_sum: (0, 0) }
    }

    /// The space that the window reads.
    pub(super) fn space(&self) -> Space {
        self.space
    }

    /// The volume that the window reads.
    pub(super) fn volume(&self) -> &'volume Volume {
        self.volume
    }

    /// The image's block size.
    pub(super) fn block_size(&self) -> BlockSize {
        self.volume.superblock.block_size
    }

    /// The `len` bytes from `position` on: a few bytes, at most some blocks.
    ///
    /// # Errors
    /// As for [`Volume::metadata`].
    pub(super) fn read(&mut self, position: u64, len: usize) -> Result<&[u8]> {
        if self.held(position, len).is_none() {
            let place = Place::inode_at(self.nid, position);
            let past_end = || Error::corrupt("metadata past the end of the address space", place);
            let end = u64::try_from(len).ok().and_then(|len| position.checked_add(len)).ok_or_else(past_end)?;
            let (from, space_len) = (position - position % PIECE_BYTES, self.volume.space_len(self.space));
            let to = end.checked_next_multiple_of(PIECE_BYTES).filter(|_| end <= space_len);
            let to = to.map_or(end, |to| to.min(space_len));
            let span = usize::try_from(to.saturating_sub(from)).map_err(|_| past_end())?;
            self.bytes = self.volume.metadata(self.space, from, span, self.nid)?;
            self.position = from;
        }
        self.held(position, len).ok_or(Error::corrupt("metadata is short", Place::inode_at(self.nid, position)))
    }

    /// The array of `N` bytes from `position` on.
    ///
    /// # Errors
    /// As for [`Volume::metadata`].
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
