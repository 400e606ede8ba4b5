//! Maps file ranges to extents, and searches for data and holes.

use floe_image::{
    ByteRange, DecodedLen, DeviceId, Error, Extent, ExtentData, Nid, Place, Result, SeekTarget, StoredBlock, StoredLen,
};

use super::{RegularInode, SizeWord, Squashfs, block_list::BlockWord, inode::FragmentTail};
use crate::format::FragmentEntry;

/// A fragment block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FragmentBlock {
    pub(crate) offset: u64,
    pub(crate) size: SizeWord,
}

impl Squashfs {
    /// Appends the extents of `range` of a file.
    pub(crate) fn map_file(
        &self,
        nid: Nid,
        file: &RegularInode,
        range: ByteRange,
        extents: &mut Vec<Extent>,
    ) -> Result<()> {
        let range = range.intersection(ByteRange::new(0, file.size));
        if range.is_empty() {
            return Ok(());
        }
        let first = extents.len();
        let log2 = u32::from(self.superblock.block_size_log2);
        let mut list = self.block_list(nid, file, range.offset().wrapping_shr(log2).min(file.block_count))?;
        let mut end = 0;
        while end < range.end()
            && let Some(block) = list.next()?
        {
            let start = block.index.wrapping_shl(log2);
            let in_file = ByteRange::new(start, u64::from(self.superblock.block_size()));
            let in_file = in_file.intersection(ByteRange::new(0, file.size));
            end = in_file.end();
            push(extents, first, Extent { range: in_file, data: self.block_data(nid, &block, in_file.len())? });
        }
        if end < range.end()
            && let Some(tail) = file.fragment
        {
            let start = file.block_count.wrapping_shl(log2);
            let in_file = ByteRange::between(start, file.size);
            let data = self.tail_data(tail, in_file.len()).map_err(|error| error.for_inode(nid))?;
            push(extents, first, Extent { range: in_file, data });
        }
        Ok(())
    }

    /// The location of a data block's `len` bytes.
    pub(crate) fn block_data(&self, nid: Nid, block: &BlockWord, len: u64) -> Result<ExtentData> {
        let device = DeviceId(0);
        let decoded_len = u32::try_from(len).unwrap_or(u32::MAX);
        match block.size {
            SizeWord::Hole => Ok(ExtentData::Hole),
            SizeWord::Uncompressed(stored_len) if stored_len == decoded_len => {
                Ok(ExtentData::Plain { device, offset: block.offset })
            }
            SizeWord::Uncompressed(_) => {
                let rule = "uncompressed data block has the wrong length";
                Err(Error::corrupt(rule, Place::inode_at(nid, block.offset)))
            }
            SizeWord::Compressed(stored_len) => {
                let stored_len = StoredLen::Known(stored_len);
                let decoded_len = DecodedLen::Exact(decoded_len);
                let encoding = self.metadata.encoding();
                let block = StoredBlock { device, offset: block.offset, stored_len, decoded_len, encoding };
                Ok(ExtentData::Encoded { block, skip: 0 })
            }
        }
    }

    /// The location of a tail end's `len` bytes.
    fn tail_data(&self, tail: FragmentTail, len: u64) -> Result<ExtentData> {
        let fragment = self.fragment(tail.index)?;
        let end = u64::from(tail.offset).saturating_add(len);
        let room = match fragment.size {
            SizeWord::Uncompressed(stored_len) => stored_len,
            _ => self.superblock.block_size(),
        };
        if end > u64::from(room) {
            return Err(Error::corrupt("tail end past the end of its fragment", Place::at(fragment.offset)));
        }
        match self.fragment_block(&fragment) {
            Some(block) => Ok(ExtentData::Encoded { block, skip: tail.offset }),
            None => {
                let offset = fragment.offset.saturating_add(u64::from(tail.offset));
                Ok(ExtentData::Plain { device: DeviceId(0), offset })
            }
        }
    }

    /// Reads entry `index` of the fragment table (section "Fragments").
    pub(crate) fn fragment(&self, index: u32) -> Result<FragmentBlock> {
        let Some(fragments) = &self.fragments else {
            return Err(Error::corrupt("tail end in an image without fragments", Place::UNKNOWN));
        };
        let entry: FragmentEntry = fragments.entry(&self.metadata, index)?;
        let place = Place::at(entry.start_block);
        let size = SizeWord::parse(entry.size, self.superblock.block_size(), place)?;
        if size == SizeWord::Hole {
            return Err(Error::corrupt("empty block", place));
        }
        let end = entry.start_block.checked_add(u64::from(size.stored_len()));
        if end.is_none_or(|end| end > self.superblock.bytes_used) {
            return Err(Error::corrupt("fragment block past the end of the file system", place));
        }
        Ok(FragmentBlock { offset: entry.start_block, size })
    }

    /// The stored block of a compressed fragment; `None` if it is uncompressed. It is always decoded whole, because it
    /// holds parts of other files too.
    pub(crate) fn fragment_block(&self, fragment: &FragmentBlock) -> Option<StoredBlock> {
        let SizeWord::Compressed(stored_len) = fragment.size else { return None };
        Some(StoredBlock {
            device: DeviceId(0),
            offset: fragment.offset,
            stored_len: StoredLen::Known(stored_len),
            decoded_len: DecodedLen::AtMost(self.superblock.block_size()),
            encoding: self.metadata.encoding(),
        })
    }
}

/// Appends an extent, or extends the last one if the two are contiguous. Leaves extents before `first` unchanged.
fn push(extents: &mut Vec<Extent>, first: usize, extent: Extent) {
    let is_own = extents.len() > first;
    if let Some(last) = extents.last_mut().filter(|last| is_own && last.range.end() == extent.range.offset()) {
        let goes_on = match (last.data, extent.data) {
            (ExtentData::Hole, ExtentData::Hole) => true,
            (ExtentData::Plain { offset: before, .. }, ExtentData::Plain { offset, .. }) => {
                before.checked_add(last.range.len()) == Some(offset)
            }
            _ => false,
        };
        if goes_on {
            last.range = ByteRange::between(last.range.offset(), extent.range.end());
            return;
        }
    }
    extents.push(extent);
}

impl Squashfs {
    /// Answers `lseek` as the kernel does since 6.18: a block without stored bytes is a hole, a tail end in a fragment
    /// is data, and every file ends with a hole (section "Holes").
    pub(crate) fn seek_file(
        &self,
        nid: Nid,
        file: &RegularInode,
        offset: u64,
        target: SeekTarget,
    ) -> Result<Option<u64>> {
        if offset >= file.size {
            return Ok(None);
        }
        let log2 = u32::from(self.superblock.block_size_log2);
        let mut list = self.block_list(nid, file, offset.wrapping_shr(log2).min(file.block_count))?;
        while let Some(block) = list.next()? {
            let is_hole = block.size == SizeWord::Hole;
            if is_hole == (target == SeekTarget::Hole) {
                return Ok(Some(block.index.wrapping_shl(log2).max(offset)));
            }
        }
        Ok(match target {
            SeekTarget::Data if file.fragment.is_some() => Some(file.block_count.wrapping_shl(log2).max(offset)),
            SeekTarget::Data => None,
            SeekTarget::Hole => Some(file.size),
        })
    }
}
