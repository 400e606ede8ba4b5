//! An inode with all that stands behind it, before it is written.

use floe_erofs::{
    format,
    write::{InodeData, InodeRecord, InodeRules},
};

use crate::allocation::{Allocator, Need};

/// An inode with all that stands behind it.
pub(crate) struct PlannedInode<'a> {
    pub(crate) record: InodeRecord,
    pub(crate) xattr_body: Vec<u8>,
    /// The index or chunk map, and what it is aligned to.
    pub(crate) map: (Vec<u8>, u64),
    pub(crate) inline: &'a [u8],
    /// The length of a directory's content: what is in blocks, and what is inline.
    pub(crate) directory_len: (u64, u64),
    /// Where it is, in bytes from the beginning of the metadata area.
    pub(crate) place: u64,
}

impl PlannedInode<'_> {
    /// The number by which it is found.
    pub(crate) fn nid(&self) -> u64 {
        self.place / format::INODE_SLOT_SIZE
    }

    /// The first of its blocks, where it has some in a row.
    pub(crate) fn start_block(&self) -> Option<u64> {
        match self.record.data {
            InodeData::Flat { start_block, .. } => start_block,
            _ => None,
        }
    }

    pub(crate) fn has_inline_pcluster(&self) -> bool {
        matches!(self.record.data, InodeData::Compressed { .. }) && !self.inline.is_empty()
    }

    pub(crate) fn need(&self, rules: &InodeRules) -> Need {
        let inode_len = self.record.len(rules);
        let mut body_len = inode_len + self.xattr_body.len() as u64;
        if !self.map.0.is_empty() {
            body_len = body_len.next_multiple_of(self.map.1) + self.map.0.len() as u64;
        }
        Need { inode_len, body_len, inline_len: self.inline.len() as u64 + self.directory_len.1 }
    }

    pub(crate) fn to_bytes(&self, rules: &InodeRules, directory_tail: &[u8]) -> Vec<u8> {
        let mut bytes = self.record.to_bytes(rules, self.xattr_body.len());
        bytes.extend_from_slice(&self.xattr_body);
        if !self.map.0.is_empty() {
            bytes.resize(bytes.len().next_multiple_of(usize::try_from(self.map.1).unwrap_or(1)), 0);
            bytes.extend_from_slice(&self.map.0);
        }
        bytes.extend_from_slice(self.inline);
        bytes.extend_from_slice(directory_tail);
        bytes
    }
}

/// Gives inodes their places; gives the length of them all in bytes.
pub(crate) fn allocate(inodes: &mut [PlannedInode<'_>], rules: &InodeRules, block_size: u64) -> u64 {
    let mut allocator = Allocator::new(block_size);
    for inode in inodes {
        inode.place = allocator.allocate(inode.need(rules));
    }
    allocator.len()
}
