//! Files in contiguous blocks (docs/format/erofs.md, Flat files).

use floe_image::{ByteRange, Error, Place, Result};

use super::{
    inode::Inode,
    piece::{Piece, PieceData},
    volume::Volume,
};

/// The piece of a flat file.
///
/// # Errors
/// The address breaks the format.
pub(super) fn piece_at(volume: &Volume, inode: &Inode, start_block: Option<u64>) -> Result<Piece> {
    let whole = ByteRange::new(0, inode.size);
    match start_block {
        None => Ok(Piece::hole(whole)),
        Some(block) => stored(volume, inode, block, whole),
    }
}

/// The piece of a file with an inline tail that contains byte `position`.
///
/// # Errors
/// The address breaks the format, or the tail crosses a block boundary.
pub(super) fn inline_piece_at(volume: &Volume, inode: &Inode, start_block: u64, position: u64) -> Result<Piece> {
    let block_size = volume.superblock.block_size;
    let blocks = block_size.blocks(inode.size).saturating_sub(1);
    let tail_start = blocks * block_size.bytes();
    if position < tail_start {
        return stored(volume, inode, start_block, ByteRange::between(0, tail_start));
    }
    let range = ByteRange::between(tail_start, inode.size);
    let tail_position = inode.body_end();
    if block_size.offset_within(tail_position) + range.len() > block_size.bytes() {
        return Err(Error::corrupt("inline data crosses a block's end", Place::inode_at(inode.nid, tail_position)));
    }
    Ok(Piece { range, data: PieceData::Inline { space: inode.space, position: tail_position } })
}

fn stored(volume: &Volume, inode: &Inode, block: u64, range: ByteRange) -> Result<Piece> {
    let offset = volume.superblock.block_size.position(block);
    let offset = offset.filter(|offset| offset.checked_add(range.len()).is_some());
    let offset = offset.ok_or(Error::corrupt("file data past the address space", Place::inode(inode.nid)))?;
    let (device, offset) = volume.devices.resolve(offset);
    Ok(Piece { range, data: PieceData::Stored { device, offset } })
}
