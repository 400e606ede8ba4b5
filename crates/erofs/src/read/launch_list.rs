//! Reads the launch list and the launch profile (docs/format/erofs.md, Launch list).

use floe_image::{BlockReader, ByteRange, Bytes, DeviceId, Nid, Result};

use super::Erofs;
use crate::format::{
    LAUNCH_LIST_COUNT_MAX, LAUNCH_LIST_MAGIC, LAUNCH_LIST_VERSION, LAUNCH_PROFILE_BYTES_MAX, LAUNCH_PROFILE_MAGIC,
    LaunchListHeader, LaunchProfileHeader, LaunchRecord,
};

/// Reads the bytes after the last block of an image in sequence.
struct Tail<'a> {
    erofs: &'a Erofs,
    position: u64,
}

/// The records of a launch list, and the bytes after them.
type ListAndTail<'a> = (Vec<(Nid, ByteRange)>, Tail<'a>);

impl Erofs {
    /// The file ranges that a recorded launch reads, in order; empty if the image has no valid launch list
    /// (docs/format/erofs.md, Launch list). The list is a hint: this function does not validate its inodes and ranges.
    ///
    /// # Errors
    /// The image cannot be read.
    pub fn launch_list(&self) -> Result<Vec<(Nid, ByteRange)>> {
        Ok(self.list_and_tail()?.map(|(ranges, _)| ranges).unwrap_or_default())
    }

    /// The text of the profile from which the launch list was made; `None` if the image has none (docs/format/erofs.md,
    /// Launch list). The text is a hint: this function does not validate it.
    ///
    /// # Errors
    /// The image cannot be read.
    pub fn launch_profile(&self) -> Result<Option<Vec<u8>>> {
        let Some((_, mut tail)) = self.list_and_tail()? else { return Ok(None) };
        let header = tail.take(LaunchProfileHeader::SIZE)?.and_then(|bytes| LaunchProfileHeader::from_prefix(&bytes));
        let is_known = |header: &LaunchProfileHeader| {
            header.magic == LAUNCH_PROFILE_MAGIC && header.len <= LAUNCH_PROFILE_BYTES_MAX
        };
        let Some(header) = header.filter(is_known) else { return Ok(None) };
        let mut text = Vec::new();
        let len = usize::try_from(header.len).unwrap_or(0);
        while text.len() < len {
            let piece = len.saturating_sub(text.len()).min(<dyn BlockReader>::STORED_LEN_MAX);
            let Some(bytes) = tail.take(piece)? else { return Ok(None) };
            text.extend_from_slice(&bytes);
        }
        Ok((crc32c::crc32c(&text) == header.checksum).then_some(text))
    }

    /// The launch list, and the bytes after it.
    fn list_and_tail(&self) -> Result<Option<ListAndTail<'_>>> {
        let superblock = &self.volume().superblock;
        let start = superblock.block_count.checked_shl(superblock.block_size.log2().into());
        let start = start.filter(|start| start >> superblock.block_size.log2() == superblock.block_count);
        let Some(position) = start else { return Ok(None) };
        let mut tail = Tail { erofs: self, position };
        let header = tail.take(LaunchListHeader::SIZE)?.and_then(|bytes| LaunchListHeader::from_prefix(&bytes));
        let is_known = |header: &LaunchListHeader| {
            header.magic == LAUNCH_LIST_MAGIC
                && header.version == LAUNCH_LIST_VERSION
                && header.count <= LAUNCH_LIST_COUNT_MAX
        };
        let Some(header) = header.filter(is_known) else { return Ok(None) };
        let mut left = usize::try_from(header.count).unwrap_or(0).saturating_mul(LaunchRecord::SIZE);
        let (mut ranges, mut checksum) = (Vec::new(), 0);
        while left > 0 {
            let len = left.min(PIECE_RECORDS * LaunchRecord::SIZE);
            let Some(bytes) = tail.take(len)? else { return Ok(None) };
            checksum = crc32c::crc32c_append(checksum, &bytes);
            let records = bytes.chunks_exact(LaunchRecord::SIZE).filter_map(LaunchRecord::from_prefix);
            ranges.extend(records.map(|record| (Nid(record.nid), ByteRange::new(record.offset, record.len))));
            left = left.saturating_sub(len);
        }
        Ok((checksum == header.checksum).then_some((ranges, tail)))
    }
}

impl Tail<'_> {
    /// The next `len` bytes; `None` if the image ends before them.
    fn take(&mut self, len: usize) -> Result<Option<Bytes>> {
        let volume = self.erofs.volume();
        let end = u64::try_from(len).ok().and_then(|len| self.position.checked_add(len));
        let Some(end) = end.filter(|end| *end <= volume.image_len) else { return Ok(None) };
        let bytes = volume.reader.stored(DeviceId(0), self.position, len)?;
        self.position = end;
        Ok(Some(bytes))
    }
}

/// How many records one read covers.
const PIECE_RECORDS: usize = <dyn BlockReader>::STORED_LEN_MAX / LaunchRecord::SIZE;
