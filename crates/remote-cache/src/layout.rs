//! The division of an object into chunks and sections.

use std::ops::Range;

use floe_image::ByteRange;

use crate::PIECE_BYTES;

/// The size of a data chunk in bytes: the unit that is fetched, verified and present. Objects with a digest table have chunks of
/// [`SECTION_BYTES`], because one digest covers as many bytes.
pub const CHUNK_BYTES: u64 = 16 << 10;

/// The size of a section of the data in bytes: the unit that is marked as used, pinned and evicted.
pub const SECTION_BYTES: u64 = PIECE_BYTES;

/// The size of a hash tree chunk in bytes, which is also a section. With blocks of 4 KiB, it verifies 4 MiB of data.
pub const TREE_CHUNK_BYTES: u64 = 32 << 10;

/// The chunks of an object: first those of its data, then those of its hash tree. Chunks keep their position in the
/// object, so the data file is a sparse copy of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ChunkLayout {
    data_len: u64,
    object_len: u64,
    chunk_bytes: u64,
}

/// The index of a chunk in its object.
pub(crate) type ChunkIndex = u64;

/// The index of a section in its object.
pub(crate) type SectionIndex = u64;

impl ChunkLayout {
    /// The chunks of an object whose data ends at `data_len`, where its hash tree begins, if it has one. Data chunks have
    /// `chunk_bytes`, of which a section is a multiple.
    pub(crate) fn new(data_len: u64, object_len: u64, chunk_bytes: u64) -> Self {
        Self { data_len: data_len.min(object_len), object_len, chunk_bytes }
    }

    /// The number of bytes that a reader may read.
    pub(crate) const fn data_len(self) -> u64 {
        self.data_len
    }

    /// The size of a data chunk in bytes.
    pub(crate) const fn chunk_bytes(self) -> u64 {
        self.chunk_bytes
    }

    /// The number of data chunks.
    pub(crate) const fn data_chunks(self) -> u64 {
        self.data_len.div_ceil(self.chunk_bytes)
    }

    /// The number of all chunks.
    pub(crate) const fn chunks(self) -> u64 {
        self.data_chunks() + self.tree_chunks()
    }

    /// The number of all sections.
    pub(crate) const fn sections(self) -> u64 {
        self.data_sections() + self.tree_chunks()
    }

    /// Whether the chunk is part of the hash tree.
    pub(crate) const fn is_tree(self, index: ChunkIndex) -> bool {
        index >= self.data_chunks()
    }

    /// The chunk with the byte at `offset`, which must be less than the length of the object.
    pub(crate) const fn index_of(self, offset: u64) -> ChunkIndex {
        match offset.checked_sub(self.data_len) {
            None => offset / self.chunk_bytes,
            Some(in_tree) => self.data_chunks() + in_tree / TREE_CHUNK_BYTES,
        }
    }

    /// The byte range of a chunk.
    pub(crate) fn range(self, index: ChunkIndex) -> ByteRange {
        match index.checked_sub(self.data_chunks()) {
            None => {
                let offset = index * self.chunk_bytes;
                ByteRange::between(offset, (offset + self.chunk_bytes).min(self.data_len))
            }
            Some(in_tree) => {
                let offset = self.data_len + in_tree * TREE_CHUNK_BYTES;
                ByteRange::between(offset, (offset + TREE_CHUNK_BYTES).min(self.object_len))
            }
        }
    }

    /// The end of the last chunk.
    pub(crate) const fn end(self) -> u64 {
        self.object_len
    }

    /// The byte range of consecutive chunks, at least one, which are all data or all tree.
    pub(crate) fn run(self, chunks: Range<ChunkIndex>) -> ByteRange {
        ByteRange::between(self.range(chunks.start).offset(), self.range(chunks.end - 1).end())
    }

    /// The section of a chunk.
    pub(crate) const fn section_of(self, index: ChunkIndex) -> SectionIndex {
        match index.checked_sub(self.data_chunks()) {
            None => index / (SECTION_BYTES / self.chunk_bytes),
            Some(in_tree) => self.data_sections() + in_tree,
        }
    }

    /// The chunks of a section.
    pub(crate) fn chunks_of(self, section: SectionIndex) -> Range<ChunkIndex> {
        match section.checked_sub(self.data_sections()) {
            None => {
                let count = SECTION_BYTES / self.chunk_bytes;
                section * count..((section + 1) * count).min(self.data_chunks())
            }
            Some(in_tree) => self.data_chunks() + in_tree..self.data_chunks() + in_tree + 1,
        }
    }

    const fn data_sections(self) -> u64 {
        self.data_len.div_ceil(SECTION_BYTES)
    }

    const fn tree_chunks(self) -> u64 {
        (self.object_len - self.data_len).div_ceil(TREE_CHUNK_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_and_sections_cover_the_object_once() {
        for (data_len, object_len) in [
            (0, 0),
            (1, 1),
            (CHUNK_BYTES, CHUNK_BYTES),
            (CHUNK_BYTES + 4096, CHUNK_BYTES + 4096),
            (SECTION_BYTES, SECTION_BYTES),
            (3 * SECTION_BYTES + 4096, 3 * SECTION_BYTES + 4096 + TREE_CHUNK_BYTES + 1),
            (0, 100_000),
            (9 << 20, 3 << 20),
        ] {
            for chunk_bytes in [CHUNK_BYTES, SECTION_BYTES] {
                let layout = ChunkLayout::new(data_len, object_len, chunk_bytes);
                let mut at = 0;
                for index in 0..layout.chunks() {
                    let range = layout.range(index);
                    assert_eq!(range.offset(), at, "chunk {index} of {layout:?}");
                    assert!(!range.is_empty(), "chunk {index} of {layout:?}");
                    assert_eq!(layout.is_tree(index), at >= layout.data_len());
                    assert_eq!([range.offset(), range.end() - 1].map(|byte| layout.index_of(byte)), [index; 2]);
                    at = range.end();
                }
                assert_eq!(at, object_len, "{layout:?}");
                let mut next = 0;
                for section in 0..layout.sections() {
                    let chunks = layout.chunks_of(section);
                    assert!(chunks.start == next && !chunks.is_empty(), "section {section} of {layout:?}");
                    assert!(chunks.clone().all(|index| layout.section_of(index) == section), "{layout:?}");
                    assert!(layout.run(chunks.clone()).len() <= SECTION_BYTES);
                    next = chunks.end;
                }
                assert_eq!(next, layout.chunks(), "{layout:?}");
            }
        }
    }
}
