//! Files in contiguous blocks (docs/format/erofs.md, Flat files).

use floe_image::{ByteRange, Error, Place, Result};

use super::{Piece, PieceData};
use crate::read::{inode::Inode, parameters::Parameters, window::Window};

/// A file in contiguous blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::read) struct Flat {
    /// The first block; `None` if the whole file is a hole.
    pub(super) start_block: Option<u64>,
}

impl Flat {
    /// The piece with all bytes.
    ///
    /// # Errors
    /// The address breaks the format.
    pub(super) fn piece_at(&self, inode: &Inode, window: &Window<'_>) -> Result<Piece> {
        let whole = ByteRange::new(0, inode.size);
        match self.start_block {
            None => Ok(Piece::hole(whole)),
            Some(block) => stored(window.parameters(), inode, block, whole),
        }
    }
}

/// A file in contiguous blocks whose tail after the last full block follows the inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::read) struct FlatInline {
    /// The first block.
    pub(super) start_block: u64,
}

impl FlatInline {
    /// The piece that contains byte `position`.
    ///
    /// # Errors
    /// The address breaks the format, or the tail crosses a block boundary.
    pub(super) fn piece_at(&self, inode: &Inode, window: &Window<'_>, position: u64) -> Result<Piece> {
        let block_size = window.parameters().superblock.block_size;
        let blocks = block_size.blocks(inode.size).saturating_sub(1);
        let tail_start = blocks * block_size.bytes();
        if position < tail_start {
            return stored(window.parameters(), inode, self.start_block, ByteRange::between(0, tail_start));
        }
        let range = ByteRange::between(tail_start, inode.size);
        let tail_position = inode.body_end();
        if block_size.offset_within(tail_position) + range.len() > block_size.bytes() {
            let place = Place::inode_at(inode.nid, tail_position);
            return Err(Error::corrupt("inline data crosses a block's end", place));
        }
        Ok(Piece { range, data: PieceData::Inline { space: inode.space, position: tail_position } })
    }
}

fn stored(parameters: &Parameters, inode: &Inode, block: u64, range: ByteRange) -> Result<Piece> {
    let offset = parameters.superblock.block_size.position(block);
    let offset = offset.filter(|offset| offset.checked_add(range.len()).is_some());
    let offset = offset.ok_or(Error::corrupt("file data past the address space", Place::inode(inode.nid)))?;
    let (device, offset) = parameters.devices.resolve(offset);
    Ok(Piece { range, data: PieceData::Stored { device, offset } })
}
