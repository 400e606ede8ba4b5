//! Reads the launch list (docs/format/erofs.md, Launch list).

use floe_image::{BlockReader, ByteRange, Bytes, DeviceId, Nid, Result};

use super::Erofs;
use crate::format::{LAUNCH_LIST_COUNT_MAX, LAUNCH_LIST_MAGIC, LAUNCH_LIST_VERSION, LaunchListHeader, LaunchRecord};

impl Erofs {
    /// What a recorded launch reads first, in order; empty if the image has no launch list. The list is a hint: its
    /// inodes and ranges are not validated.
    ///
    /// # Errors
    /// The image cannot be read.
    pub fn launch_list(&self) -> Result<Vec<(Nid, ByteRange)>> {
        let volume = self.volume();
        let superblock = &volume.superblock;
        let start = superblock.block_count.checked_shl(superblock.block_size.log2().into());
        let start = start.filter(|start| start >> superblock.block_size.log2() == superblock.block_count);
        let Some(start) = start else { return Ok(Vec::new()) };
        let mut position = start;
        let mut take = |len: usize| -> Result<Option<Bytes>> {
            let end = u64::try_from(len).ok().and_then(|len| position.checked_add(len));
            let Some(end) = end.filter(|end| *end <= volume.image_len) else { return Ok(None) };
            let bytes = volume.reader.stored(DeviceId(0), position, len)?;
            position = end;
            Ok(Some(bytes))
        };
        let header = take(LaunchListHeader::SIZE)?.and_then(|bytes| LaunchListHeader::from_prefix(&bytes));
        let is_known = |header: &LaunchListHeader| {
            header.magic == LAUNCH_LIST_MAGIC
                && header.version == LAUNCH_LIST_VERSION
                && header.count <= LAUNCH_LIST_COUNT_MAX
        };
        let Some(header) = header.filter(is_known) else { return Ok(Vec::new()) };
        let mut left = usize::try_from(header.count).unwrap_or(0).saturating_mul(LaunchRecord::SIZE);
        let (mut ranges, mut checksum) = (Vec::new(), 0);
        while left > 0 {
            let len = left.min(PIECE_RECORDS * LaunchRecord::SIZE);
            let Some(bytes) = take(len)? else { return Ok(Vec::new()) };
            checksum = crc32c::crc32c_append(checksum, &bytes);
            let records = bytes.chunks_exact(LaunchRecord::SIZE).filter_map(LaunchRecord::from_prefix);
            ranges.extend(records.map(|record| (Nid(record.nid), ByteRange::new(record.offset, record.len))));
            left = left.saturating_sub(len);
        }
        Ok(if checksum == header.checksum { ranges } else { Vec::new() })
    }
}

/// How many records one read covers.
const PIECE_RECORDS: usize = <dyn BlockReader>::STORED_LEN_MAX / LaunchRecord::SIZE;
