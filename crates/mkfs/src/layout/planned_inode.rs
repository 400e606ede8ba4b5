//! An inode with its body before it is written.

use std::borrow::Cow;

use floe_erofs::{
    format,
    write::{ChunkMap, InodeData, InodeRecord, InodeRules},
};

use super::allocation::{Allocator, Need};

/// An inode with its body.
pub(crate) struct PlannedInode<'a> {
    pub(crate) record: InodeRecord,
    pub(crate) xattr_body: Vec<u8>,
    pub(crate) map: InodeMap<'a>,
    pub(crate) inline: &'a [u8],
    /// The length of a directory's content: in blocks, and inline.
    pub(crate) directory_len: (u64, u64),
    /// Its offset in the metadata area, in bytes.
    pub(crate) position: u64,
}

impl PlannedInode<'_> {
    /// The nid.
    pub(crate) fn nid(&self) -> u64 {
        self.position / format::INODE_SLOT_SIZE
    }

    /// The first block, if the data is in contiguous blocks.
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
        if self.map.len() > 0 {
            body_len = body_len.next_multiple_of(self.map.alignment()) + self.map.len();
        }
        Need { inode_len, body_len, inline_len: self.inline.len() as u64 + self.directory_len.1 }
    }

    /// The bytes in order; the inline part of a directory comes from `directory_tail`.
    pub(crate) fn parts<'b>(
        &'b self,
        rules: &InodeRules,
        directory_tail: &'b [u8],
    ) -> impl Iterator<Item = Cow<'b, [u8]>> {
        let mut head = self.record.to_bytes(rules, self.xattr_body.len());
        head.extend_from_slice(&self.xattr_body);
        if self.map.len() > 0 {
            head.resize(head.len().next_multiple_of(usize::try_from(self.map.alignment()).unwrap_or(1)), 0);
        }
        let (index, chunks) = match &self.map {
            InodeMap::None => (&[][..], None),
            InodeMap::Index(bytes) => (bytes.as_slice(), None),
            InodeMap::Chunks(map) => (&[][..], Some(map.parts())),
        };
        let chunks = chunks.into_iter().flatten().map(Cow::Owned);
        let tails = [self.inline, directory_tail].map(Cow::Borrowed);
        [Cow::Owned(head), Cow::Borrowed(index)].into_iter().chain(chunks).chain(tails)
    }
}

/// The map that follows an inode.
pub(crate) enum InodeMap<'a> {
    /// None: the inode itself locates the data.
    None,
    /// The index of a compressed file.
    Index(Vec<u8>),
    /// The map of a chunked file, generated while it is written because it may be long.
    Chunks(ChunkMap<'a>),
}

impl InodeMap<'_> {
    fn len(&self) -> u64 {
        match self {
            Self::None => 0,
            Self::Index(bytes) => bytes.len() as u64,
            Self::Chunks(map) => map.len(),
        }
    }

    fn alignment(&self) -> u64 {
        match self {
            Self::None => 1,
            Self::Index(_) => 8,
            Self::Chunks(map) => map.alignment(),
        }
    }
}

/// Assigns offsets to inodes; returns the total length in bytes.
pub(crate) fn allocate(inodes: &mut [PlannedInode<'_>], rules: &InodeRules, block_size: u64) -> u64 {
    let mut allocator = Allocator::new(block_size);
    for inode in inodes {
        inode.position = allocator.allocate(inode.need(rules));
    }
    allocator.len()
}
