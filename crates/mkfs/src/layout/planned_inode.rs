//! An inode with its body before it is written, and its place in the metadata area.

use std::borrow::Cow;

use floe_erofs::{
    format::{self, INODE_SLOT_SIZE},
    write::{ChunkMap, InodeData, InodeRecord, InodeRules},
};

use super::inline_data::InlineData;
use crate::error::Result;

/// An inode with its body.
pub(crate) struct PlannedInode<'a> {
    pub(crate) record: InodeRecord,
    pub(crate) xattr_body: Vec<u8>,
    pub(crate) map: InodeMap<'a>,
    pub(crate) inline: InlineData,
    /// The length of a directory's content: in blocks, and inline.
    pub(crate) directory_len: (u64, u64),
}

impl PlannedInode<'_> {
    /// Sets the first block of the content of a directory.
    pub(crate) fn set_start_block(&mut self, block: u64) {
        self.record.data = InodeData::Flat { start_block: Some(block), inline: self.directory_len.1 > 0 };
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
        Need { inode_len, body_len, inline_len: self.inline.len() + self.directory_len.1 }
    }

    /// The bytes in order, and at their end the inline data: `tails`.
    pub(crate) fn parts<'b>(&'b self, rules: &InodeRules, tails: [&'b [u8]; 2]) -> impl Iterator<Item = Cow<'b, [u8]>> {
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
        let tails = tails.map(Cow::Borrowed);
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

/// The places of inodes in the metadata area. The inodes themselves are planned again when they are written: a million of them
/// would take hundreds of MiB.
pub(crate) struct InodePlaces {
    /// The nid of each inode.
    pub(crate) nids: Vec<u64>,
    /// The length of the area.
    pub(crate) area_len: u64,
    /// The directories that have blocks: the index of the inode, the first block, counted from the first one of all
    /// directories, and the length.
    pub(crate) directories: Vec<(usize, u64, u64)>,
    /// The number of blocks of all directories.
    pub(crate) directory_blocks: u64,
    /// Whether a pcluster is inline.
    pub(crate) has_inline_pclusters: bool,
}

impl InodePlaces {
    /// Places inodes in their order.
    pub(crate) fn new<'a>(
        inodes: impl Iterator<Item = Result<PlannedInode<'a>>>,
        rules: &InodeRules,
        block_size: u64,
    ) -> Result<Self> {
        let mut allocator = Allocator::new(block_size);
        let mut places = Self {
            nids: Vec::with_capacity(inodes.size_hint().0),
            area_len: 0,
            directories: Vec::new(),
            directory_blocks: 0,
            has_inline_pclusters: false,
        };
        for (place, inode) in inodes.enumerate() {
            let inode = inode?;
            places.nids.push(allocator.allocate(inode.need(rules)) / format::INODE_SLOT_SIZE);
            places.has_inline_pclusters |= inode.has_inline_pcluster();
            let (blocks_len, _) = inode.directory_len;
            if blocks_len > 0 {
                places.directories.push((place, places.directory_blocks, blocks_len));
                places.directory_blocks += blocks_len.div_ceil(block_size);
            }
        }
        places.area_len = allocator.len();
        Ok(places)
    }

    /// The same places in the metabox.
    pub(crate) fn boxed(mut self) -> Self {
        self.nids.iter_mut().for_each(|nid| *nid |= format::DIRENT_NID_MASK + 1);
        self
    }

    /// The offset of an inode in its area, in bytes.
    pub(crate) fn position(&self, place: usize) -> u64 {
        (self.nids[place] & format::DIRENT_NID_MASK) * format::INODE_SLOT_SIZE
    }

    /// The first block of a directory, counted from that of all directories, if it has blocks.
    pub(crate) fn directory_block(&self, place: usize) -> Option<u64> {
        let found = self.directories.binary_search_by_key(&place, |(place, ..)| *place).ok()?;
        Some(self.directories[found].1)
    }
}

/// The maximum number of gaps kept for small inodes.
const GAPS_MAX: usize = 64;

/// The space requirements of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Need {
    /// The length of the inode itself in bytes; it must not cross a block boundary.
    inode_len: u64,
    /// The length of the inode and its body without inline data, in bytes.
    body_len: u64,
    /// The length of the inline data in bytes. It must lie within the block in which the body ends. (Linux 6.18 treats
    /// an inline pcluster at the beginning of the second block of a page as empty.)
    inline_len: u64,
}

impl Need {
    fn fits(&self, offset: u64, block_size: u64) -> bool {
        let inline_start = (offset + self.body_len) % block_size;
        offset % block_size + self.inode_len <= block_size
            && (self.inline_len == 0 || inline_start > 0 && inline_start + self.inline_len <= block_size)
    }

    fn len(&self) -> u64 {
        self.body_len + self.inline_len
    }
}

/// Allocates space sequentially and fills skipped gaps with inodes that fit.
#[derive(Debug)]
struct Allocator {
    block_size: u64,
    end: u64,
    gaps: Vec<(u64, u64)>,
}

impl Allocator {
    /// Creates an area whose first slot stays empty, because 0 is not a valid nid.
    fn new(block_size: u64) -> Self {
        Self { block_size, end: INODE_SLOT_SIZE, gaps: Vec::new() }
    }

    /// The length of the area so far, in bytes.
    fn len(&self) -> u64 {
        self.end
    }

    /// Allocates space; returns its offset within the area.
    fn allocate(&mut self, need: Need) -> u64 {
        for number in 0..self.gaps.len() {
            let (start, end) = self.gaps[number];
            if end - start < need.len() {
                continue;
            }
            let positions = (start..=end - need.len()).step_by(INODE_SLOT_SIZE as usize);
            if let Some(position) = positions.into_iter().find(|position| need.fits(*position, self.block_size)) {
                self.gaps.remove(number);
                self.keep_gap(start, position);
                self.keep_gap((position + need.len()).next_multiple_of(INODE_SLOT_SIZE), end);
                return position;
            }
        }
        let start = self.end.next_multiple_of(INODE_SLOT_SIZE);
        let positions = (start..=start + self.block_size).step_by(INODE_SLOT_SIZE as usize);
        // Inline data leaves more than one slot free in its block, so one of these positions fits.
        let position = positions.into_iter().find(|position| need.fits(*position, self.block_size)).unwrap_or(start);
        self.keep_gap(start, position);
        self.end = position + need.len();
        position
    }

    fn keep_gap(&mut self, start: u64, end: u64) {
        if end < start + INODE_SLOT_SIZE {
            return;
        }
        if self.gaps.len() == GAPS_MAX {
            self.gaps.remove(0);
        }
        self.gaps.push((start, end));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inodes_keep_within_blocks_and_apart() {
        for block_size in [512, 4096] {
            let mut allocator = Allocator::new(block_size);
            let mut taken = Vec::new();
            let mut state = 1u64;
            for _ in 0..3000 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let inode_len = if state >> 60 > 8 { 64 } else { 32 };
                let body_len = inode_len + (state >> 40) % 50 * 4;
                let inline_len = (state >> 33) % (block_size - 64);
                let need = Need { inode_len, body_len, inline_len };
                let position = allocator.allocate(need);
                assert_eq!(position % 32, 0);
                assert!(need.fits(position, block_size), "{need:?} at {position}");
                taken.push((position, position + need.len()));
            }
            taken.sort();
            assert!(taken.windows(2).all(|pair| pair[0].1 <= pair[1].0), "positions overlap");
            let used: u64 = taken.iter().map(|(start, end)| end - start).sum();
            assert!(used * 10 > allocator.len() * 8, "{used} of {} bytes are used", allocator.len());
        }
    }
}
