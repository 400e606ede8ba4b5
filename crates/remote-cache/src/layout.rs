//! The division of an object into chunks.

use floe_image::ByteRange;

use crate::PIECE_BYTES;

/// The size of a data chunk in bytes: as many as one digest of a table covers.
pub const CHUNK_BYTES: u64 = PIECE_BYTES;

/// The size of a hash tree chunk in bytes. With blocks of 4 KiB, it verifies 4 MiB of data.
pub const TREE_CHUNK_BYTES: u64 = 32 << 10;

/// The chunks of an object: first those of its data, then those of its hash tree. Chunks keep their position in the
/// object, so the data file is a sparse copy of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ChunkLayout {
    data_len: u64,
    object_len: u64,
}

/// The index of a chunk in its object.
pub(crate) type ChunkIndex = u64;

impl ChunkLayout {
    /// The chunks of an object whose data ends at `data_len`, where its hash tree begins, if it has one.
    pub(crate) fn new(data_len: u64, object_len: u64) -> Self {
        Self { data_len: data_len.min(object_len), object_len }
    }

    /// The number of bytes that a reader may read.
    pub(crate) const fn data_len(self) -> u64 {
        self.data_len
    }

    /// The number of data chunks.
    pub(crate) const fn data_chunks(self) -> u64 {
        self.data_len.div_ceil(CHUNK_BYTES)
    }

    /// The number of all chunks.
    pub(crate) const fn chunks(self) -> u64 {
        self.data_chunks() + (self.object_len - self.data_len).div_ceil(TREE_CHUNK_BYTES)
    }

    /// Whether the chunk is part of the hash tree.
    pub(crate) const fn is_tree(self, index: ChunkIndex) -> bool {
        index >= self.data_chunks()
    }

    /// The chunk with the byte at `offset`, which must be less than the length of the object.
    pub(crate) const fn index_of(self, offset: u64) -> ChunkIndex {
        match offset.checked_sub(self.data_len) {
            None => offset / CHUNK_BYTES,
            Some(in_tree) => self.data_chunks() + in_tree / TREE_CHUNK_BYTES,
        }
    }

    /// The byte range of a chunk.
    pub(crate) fn range(self, index: ChunkIndex) -> ByteRange {
        match index.checked_sub(self.data_chunks()) {
            None => ByteRange::between(index * CHUNK_BYTES, ((index + 1) * CHUNK_BYTES).min(self.data_len)),
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

    /// The byte range of `count` chunks from `first` on, which are all data or all tree.
    pub(crate) fn run(self, first: ChunkIndex, count: u64) -> ByteRange {
        ByteRange::between(self.range(first).offset(), self.range(first + count - 1).end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_the_object_once() {
        for (data_len, object_len) in [
            (0, 0),
            (1, 1),
            (CHUNK_BYTES, CHUNK_BYTES),
            (CHUNK_BYTES + 4096, CHUNK_BYTES + 4096),
            (3 * CHUNK_BYTES + 4096, 3 * CHUNK_BYTES + 4096 + TREE_CHUNK_BYTES + 1),
            (0, 100_000),
            (9 << 20, 3 << 20),
        ] {
            let layout = ChunkLayout::new(data_len, object_len);
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
        }
    }
}
