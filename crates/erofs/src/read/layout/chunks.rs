//! Chunk-based files (docs/format/erofs.md, Chunks).

use floe_image::{ByteRange, Error, Place, Result};

use super::{Piece, PieceData};
use crate::{
    format::{self, BLOCK_MAP_ENTRY_SIZE, InodeChunkIndex},
    read::{
        inode::{ChunkFormat, Inode},
        window::Window,
    },
};

/// A chunk-based file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::read) struct Chunks {
    /// The format of the chunk map.
    pub(in crate::read) format: ChunkFormat,
}

/// A record of a chunk map.
pub(in crate::read) struct ChunkRecord {
    /// The unmasked device number.
    pub(in crate::read) stored_id: u16,
    /// The first block; `None` for a hole.
    block: Option<u64>,
    /// The position of the record.
    position: u64,
}

impl Chunks {
    /// The record of the chunk that contains byte `position` of a file.
    ///
    /// # Errors
    /// The chunk map cannot be read or breaks the format.
    pub(in crate::read) fn record_at(
        &self,
        inode: &Inode,
        window: &mut Window<'_>,
        position: u64,
    ) -> Result<ChunkRecord> {
        let chunks = self.format;
        let corrupt = |rule| Error::corrupt(rule, Place::inode(inode.nid));
        let record_len = if chunks.has_indexes { 8 } else { BLOCK_MAP_ENTRY_SIZE };
        let past = (position >> chunks.chunk_size_log2).checked_mul(record_len);
        let start = inode.body_end().checked_next_multiple_of(record_len);
        let position = start.zip(past).and_then(|(start, past)| start.checked_add(past));
        let position = position.ok_or(corrupt("chunk map past the address space"))?;
        let (stored_id, block, hole) = if chunks.has_indexes {
            let record: [u8; InodeChunkIndex::SIZE] = window.array(position)?;
            let record = InodeChunkIndex::from_prefix(&record).unwrap_or_default();
            let hi = if chunks.is_48bit { u64::from(record.startblk_hi) } else { 0 };
            let hole = if chunks.is_48bit { format::NULL_ADDR_48 } else { u64::from(format::NULL_ADDR_32) };
            (record.device_id, hi << 32 | u64::from(record.startblk_lo), hole)
        } else {
            (0, u64::from(u32::from_le_bytes(window.array(position)?)), u64::from(format::NULL_ADDR_32))
        };
        Ok(ChunkRecord { stored_id, block: Some(block).filter(|block| *block != hole), position })
    }

    /// The piece of a chunk-based file that contains byte `position`: a chunk, cut at the file size.
    ///
    /// # Errors
    /// The chunk map cannot be read or breaks the format.
    pub(super) fn piece_at(&self, inode: &Inode, window: &mut Window<'_>, position: u64) -> Result<Piece> {
        let chunk_size_log2 = self.format.chunk_size_log2;
        let start = position >> chunk_size_log2 << chunk_size_log2;
        let range = ByteRange::new(start, 1 << chunk_size_log2).intersection(ByteRange::new(0, inode.size));
        let record = self.record_at(inode, window, position)?;
        let corrupt = |rule| Error::corrupt(rule, Place::inode_at(inode.nid, record.position));
        let Some(block) = record.block else { return Ok(Piece::hole(range)) };
        let parameters = window.parameters();
        let offset = parameters.superblock.block_size.position(block);
        let offset = offset.filter(|offset| offset.checked_add(range.len()).is_some());
        let offset = offset.ok_or(corrupt("chunk past the address space"))?;
        let (device, offset) = parameters
            .devices
            .resolve_on(record.stored_id, offset)
            .ok_or(corrupt("chunk on a device missing in the device table"))?;
        Ok(Piece { range, data: PieceData::Stored { device, offset } })
    }
}
