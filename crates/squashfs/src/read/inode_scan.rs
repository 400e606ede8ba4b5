//! A scan of the inode table.

use floe_image::{Error, Nid, Result};

use super::{
    Inode, Squashfs,
    metadata::{MetadataCursor, MetadataPosition},
};

/// Reads all inodes in table order, whether or not a directory refers to them. Ends with the table, after as many
/// inodes as the superblock counts, or with the first error.
pub(crate) struct InodeScan<'image> {
    squashfs: &'image Squashfs,
    cursor: MetadataCursor<'image>,
    left: u32,
}

impl Squashfs {
    pub(crate) fn scan_inodes(&self) -> InodeScan<'_> {
        let start = MetadataPosition { block: self.inode_table.start, offset: 0 };
        let cursor = self.metadata.cursor(self.inode_table, start);
        InodeScan { squashfs: self, cursor, left: self.superblock.inode_count }
    }
}

impl InodeScan<'_> {
    fn read_next(&mut self) -> Result<Inode> {
        let position = self.cursor.position();
        let block = position.block.saturating_sub(self.squashfs.inode_table.start);
        let nid = Nid(block.checked_shl(16).unwrap_or(u64::MAX) | u64::from(position.offset));
        let named = |error: Error| error.for_inode(nid);
        let inode = self.squashfs.read_inode(&mut self.cursor, nid).map_err(named)?;
        inode.skip_rest(&mut self.cursor).map_err(named)?;
        Ok(inode)
    }
}

impl Iterator for InodeScan<'_> {
    type Item = Result<Inode>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        if self.cursor.is_at_end() {
            self.left = 0;
            return None;
        }
        let inode = self.read_next();
        if inode.is_err() {
            self.left = 0;
        }
        Some(inode)
    }
}
