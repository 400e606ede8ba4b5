//! Searches for data and holes.

use floe_image::{Nid, Result, SeekTarget};

use super::{RegularInode, SizeWord, Squashfs};

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
