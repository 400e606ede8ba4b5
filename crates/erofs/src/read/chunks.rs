//! Files in chunks (docs/format/erofs.md, Chunks).

use floe_image::{ByteRange, Error, Place, Result};

use super::{
    inode::{ChunkFormat, Inode},
    piece::{Piece, PieceData},
    volume::Volume,
    window::Window,
};
use crate::format::{self, BLOCK_MAP_ENTRY_SIZE, InodeChunkIndex};

/// The piece of a chunk-based file that byte `position` is in: a chunk, cut at the file's size.
///
/// # Errors
/// The chunk map cannot be read or breaks the format.
pub(super) fn piece_at(
    volume: &Volume,
    inode: &Inode,
    chunks: ChunkFormat,
    window: &mut Window<'_>,
    position: u64,
) -> Result<Piece> {
    let chunk_size_log2 = u32::from(chunks.chunk_size_log2);
    let number = position >> chunk_size_log2;
    let start = number << chunk_size_log2;
    let range = ByteRange::new(start, 1 << chunk_size_log2).intersection(ByteRange::new(0, inode.size));
    let record_len = if chunks.has_indexes { 8 } else { BLOCK_MAP_ENTRY_SIZE };
    let record_position = number.checked_mul(record_len).and_then(|past| {
        let map_start = inode.body_end().checked_next_multiple_of(record_len)?;
        map_start.checked_add(past)
    });
    let corrupt = |rule| Error::corrupt(rule, Place { offset: record_position, ..Place::inode(inode.nid) });
    let record_position = record_position.ok_or(corrupt("chunk map past the address space"))?;
    let (stored_id, block, hole) = if chunks.has_indexes {
        let record: [u8; InodeChunkIndex::SIZE] = window.array(record_position)?;
        let record = InodeChunkIndex::from_prefix(&record).ok_or(corrupt("chunk index is short"))?;
        let hi = if chunks.is_48bit { u64::from(record.startblk_hi) } else { 0 };
        let hole = if chunks.is_48bit { format::NULL_ADDR_48 } else { u64::from(format::NULL_ADDR_32) };
        (record.device_id, hi << 32 | u64::from(record.startblk_lo), hole)
    } else {
        (0, u64::from(u32::from_le_bytes(window.array(record_position)?)), u64::from(format::NULL_ADDR_32))
    };
    if block == hole {
        return Ok(Piece::hole(range));
    }
    let offset = volume.superblock.block_size.position(block);
    let offset = offset.filter(|offset| offset.checked_add(range.len()).is_some());
    let offset = offset.ok_or(corrupt("chunk past the address space"))?;
    let (device, offset) = volume
        .devices
        .resolve_on(stored_id, offset)
        .ok_or(corrupt("chunk on a device that the device table does not have"))?;
    Ok(Piece { range, data: PieceData::Stored { device, offset } })
}
