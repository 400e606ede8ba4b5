//! Block lists of regular files.

use floe_image::{Error, Nid, Place, Result};

use super::{
    RegularInode, Squashfs,
    block_index::{Checkpoint, SharedBlockIndex},
    metadata::{MetadataCursor, MetadataPosition},
};
use crate::format::{BLOCK_UNCOMPRESSED, BLOCK_WORD_MAX};

/// A block's size word (section "Data blocks").
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SizeWord {
    /// A hole: nothing is stored, the data is zero.
    Hole,
    /// This many bytes, uncompressed.
    Uncompressed(u32),
    /// This many bytes, compressed.
    Compressed(u32),
}

impl SizeWord {
    /// Parses a size word of a block list or of the fragment table.
    pub(crate) fn parse(word: u32, block_size: u32, place: Place) -> Result<Self> {
        if word == 0 {
            return Ok(Self::Hole);
        }
        if word > BLOCK_WORD_MAX {
            return Err(Error::corrupt("unknown bits in the size of a block", place));
        }
        let stored_len = word & !BLOCK_UNCOMPRESSED;
        if stored_len == 0 {
            return Err(Error::corrupt("empty block", place));
        }
        if stored_len > block_size {
            return Err(Error::corrupt("stored block exceeds the block size", place));
        }
        let is_compressed = word & BLOCK_UNCOMPRESSED == 0;
        Ok(if is_compressed { Self::Compressed(stored_len) } else { Self::Uncompressed(stored_len) })
    }

    /// The stored length in bytes.
    pub(crate) const fn stored_len(self) -> u32 {
        match self {
            Self::Hole => 0,
            Self::Uncompressed(len) | Self::Compressed(len) => len,
        }
    }
}

/// A block of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BlockWord {
    /// The index of the block in the file.
    pub(crate) index: u64,
    /// The position of its stored bytes.
    pub(crate) offset: u64,
    pub(crate) size: SizeWord,
}

/// Reads a block list from a given block on.
pub(crate) struct BlockList<'image> {
    cursor: MetadataCursor<'image>,
    nid: Nid,
    index: u64,
    count: u64,
    offset: u64,
    block_size: u32,
    bytes_used: u64,
    shared_index: Option<SharedBlockIndex>,
}

impl Squashfs {
    /// The block list of file `nid` from block `index` on. After a first walk of the list, the cost does not depend on
    /// `index`: see [`SharedBlockIndex`].
    pub(crate) fn block_list(&self, nid: Nid, file: &RegularInode, index: u64) -> Result<BlockList<'_>> {
        let shared_index = self.block_indexes.of(nid, file.block_count);
        let known = shared_index.as_ref().and_then(|shared| shared.nearest(index));
        let (start, checkpoint) =
            known.unwrap_or((0, Checkpoint { position: file.block_list, data_offset: file.start }));
        let mut list = BlockList {
            cursor: self.metadata.cursor(self.inode_table, checkpoint.position),
            nid,
            index: start,
            count: file.block_count,
            offset: checkpoint.data_offset,
            block_size: self.superblock.block_size(),
            bytes_used: self.superblock.bytes_used,
            shared_index,
        };
        while list.index < index && list.next()?.is_some() {}
        Ok(list)
    }
}

impl BlockList<'_> {
    /// The position of the next size word.
    pub(crate) const fn position(&self) -> MetadataPosition {
        self.cursor.position()
    }

    /// The next block; `None` at the end of the list.
    pub(crate) fn next(&mut self) -> Result<Option<BlockWord>> {
        if self.index >= self.count {
            return Ok(None);
        }
        self.read_next().map(Some).map_err(|error| error.for_inode(self.nid))
    }

    fn read_next(&mut self) -> Result<BlockWord> {
        if let Some(shared) = &self.shared_index {
            let checkpoint = Checkpoint { position: self.cursor.position(), data_offset: self.offset };
            shared.learn(self.index, checkpoint);
        }
        let place = self.cursor.position().place();
        let size = SizeWord::parse(self.cursor.read_u32()?, self.block_size, place)?;
        let block = BlockWord { index: self.index, offset: self.offset, size };
        let end = self.offset.checked_add(u64::from(size.stored_len()));
        match end.filter(|end| size == SizeWord::Hole || *end <= self.bytes_used) {
            Some(end) => self.offset = end,
            None => {
                let rule = "data block past the end of the file system";
                return Err(Error::corrupt(rule, Place::inode_at(self.nid, self.offset)));
            }
        }
        self.index = self.index.saturating_add(1);
        Ok(block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_words_are_held_to_their_rules() {
        for (word, expected) in [
            (0, Ok(SizeWord::Hole)),
            (1, Ok(SizeWord::Compressed(1))),
            (4096, Ok(SizeWord::Compressed(4096))),
            (1 << 24 | 4096, Ok(SizeWord::Uncompressed(4096))),
            (4097, Err("stored block exceeds the block size")),
            (1 << 24 | 4097, Err("stored block exceeds the block size")),
            (1 << 24, Err("empty block")),
            (1 << 25, Err("unknown bits in the size of a block")),
            (u32::MAX, Err("unknown bits in the size of a block")),
        ] {
            let told = SizeWord::parse(word, 4096, Place::UNKNOWN).map_err(|error| error.to_string());
            assert_eq!(told, expected.map_err(|rule| format!("corrupt image: {rule}")), "{word:#x}");
        }
    }
}
