//! Chunk maps (docs/format/erofs.md, Chunks).

use super::{high_u16, low_u32};
use crate::format::{self, InodeChunkIndex};

/// The number of records in one part of a map.
const PART_RECORDS: u64 = 8192;

/// The location of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Chunk {
    /// A hole: all bytes are zero.
    Hole,
    /// Blocks of the image or of a device.
    Blocks {
        /// The device; 0 is the image itself.
        device: u16,
        /// The first block.
        block: u64,
    },
}

/// Consecutive chunks: holes, or chunks in contiguous blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct ChunkRun {
    first: Chunk,
    count: u64,
}

/// The chunks of a file in order. Memory grows with the number of runs, not of chunks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chunks {
    runs: Vec<ChunkRun>,
    count: u64,
    chunk_blocks_log2: u8,
}

impl Chunks {
    /// Creates an empty list. Each chunk will have `1 << chunk_blocks_log2` blocks; the logarithm is at most 31.
    pub fn new(chunk_blocks_log2: u8) -> Self {
        Self { runs: Vec::new(), count: 0, chunk_blocks_log2: chunk_blocks_log2.min(CHUNK_BLOCKS_LOG2_MAX) }
    }

    /// Whether there are no chunks.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Appends a chunk.
    pub fn push(&mut self, chunk: Chunk) {
        let next = self.runs.last().map(|run| run.first.after(run.count, self.chunk_blocks_log2));
        match self.runs.last_mut() {
            Some(run) if next == Some(chunk) => run.count = run.count.saturating_add(1),
            _ => self.runs.push(ChunkRun { first: chunk, count: 1 }),
        }
        self.count = self.count.saturating_add(1);
    }

    /// Appends `count` chunks in contiguous blocks.
    pub fn push_blocks(&mut self, device: u16, block: u64, count: u64) {
        if count > 0 {
            self.push(Chunk::Blocks { device, block });
            let more = count - 1;
            if let Some(run) = self.runs.last_mut() {
                run.count = run.count.saturating_add(more);
            }
            self.count = self.count.saturating_add(more);
        }
    }

    /// Appends `count` holes.
    pub fn push_holes(&mut self, count: u64) {
        match self.runs.last_mut() {
            _ if count == 0 => {}
            Some(run) if run.first == Chunk::Hole => run.count = run.count.saturating_add(count),
            _ => self.runs.push(ChunkRun { first: Chunk::Hole, count }),
        }
        self.count = self.count.saturating_add(count);
    }

    /// The chunks that are not holes: the index of each, its device and its first block.
    pub fn stored(&self) -> impl Iterator<Item = (u64, u16, u64)> {
        let mut start = 0u64;
        self.runs.iter().flat_map(move |run| {
            let first = start;
            start = start.saturating_add(run.count);
            let count = if run.first == Chunk::Hole { 0 } else { run.count };
            (0..count).filter_map(move |distance| match run.first.after(distance, self.chunk_blocks_log2) {
                Chunk::Blocks { device, block } => Some((first.saturating_add(distance), device, block)),
                Chunk::Hole => None,
            })
        })
    }

    /// The number of blocks of a chunk.
    pub fn chunk_blocks(&self) -> u64 {
        1 << self.chunk_blocks_log2
    }

    /// log2 of the factor by which chunks can grow while each stays within one run.
    fn enlargement_log2(&self) -> u8 {
        let mut start = 0u64;
        let mut enlargement = self.count.checked_next_power_of_two().map_or(u64::BITS, u64::trailing_zeros);
        for run in &self.runs {
            enlargement = enlargement.min(start.trailing_zeros());
            start = start.saturating_add(run.count);
        }
        let room = CHUNK_BLOCKS_LOG2_MAX.saturating_sub(self.chunk_blocks_log2);
        u8::try_from(enlargement).unwrap_or(u8::MAX).min(room)
    }
}

/// log2 of the largest chunk in blocks.
const CHUNK_BLOCKS_LOG2_MAX: u8 = 31;

impl Chunk {
    /// The chunk `distance` chunks later in a run that begins with this one.
    fn after(self, distance: u64, chunk_blocks_log2: u8) -> Self {
        match self {
            Self::Hole => Self::Hole,
            Self::Blocks { device, block } => {
                let blocks = distance.saturating_mul(1 << chunk_blocks_log2);
                Self::Blocks { device, block: block.saturating_add(blocks) }
            }
        }
    }
}

/// The map of a chunked file. It uses the largest chunks that the runs allow, to stay small.
#[derive(Clone, Copy, Debug)]
pub struct ChunkMap<'a> {
    chunks: &'a Chunks,
    enlargement_log2: u8,
    is_wide: bool,
    has_indexes: bool,
}

impl<'a> ChunkMap<'a> {
    /// Creates the map of `chunks`. With `indexes`, it uses 8-byte records even where 4-byte records suffice.
    pub fn new(chunks: &'a Chunks, indexes: bool) -> Self {
        let is_wide = chunks.runs.iter().any(|run| {
            let last = run.first.after(run.count.saturating_sub(1), chunks.chunk_blocks_log2);
            matches!(last, Chunk::Blocks { block, .. } if block >= u64::from(format::NULL_ADDR_32))
        });
        let other_device = |run: &ChunkRun| matches!(run.first, Chunk::Blocks { device: 1.., .. });
        let has_indexes = indexes || is_wide || chunks.runs.iter().any(other_device);
        Self { chunks, enlargement_log2: chunks.enlargement_log2(), is_wide, has_indexes }
    }

    /// The chunk format of the inode.
    pub fn format(&self) -> u16 {
        let mut word = u16::from(self.chunk_blocks_log2()) & format::CHUNK_FORMAT_BLKBITS_MASK;
        if self.has_indexes {
            word |= format::CHUNK_FORMAT_INDEXES;
        }
        if self.is_wide {
            word |= format::CHUNK_FORMAT_48BIT;
        }
        word
    }

    /// The length of the map in bytes.
    pub fn len(&self) -> u64 {
        self.record_count().saturating_mul(self.alignment())
    }

    /// Whether the map has no records.
    pub fn is_empty(&self) -> bool {
        self.record_count() == 0
    }

    /// The alignment of the map in bytes: the length of a record.
    pub fn alignment(&self) -> u64 {
        if self.has_indexes { 8 } else { format::BLOCK_MAP_ENTRY_SIZE }
    }

    /// The bytes of the map, in parts of some KiB.
    pub fn parts(&self) -> impl Iterator<Item = Vec<u8>> + use<'a> {
        let map = *self;
        let chunk_blocks_log2 = map.chunk_blocks_log2();
        map.chunks.runs.iter().flat_map(move |run| {
            let count = map.records(run.count);
            let starts = (0..count).step_by(usize::try_from(PART_RECORDS).unwrap_or(usize::MAX));
            starts.map(move |start| {
                let mut bytes = Vec::new();
                for number in start..count.min(start.saturating_add(PART_RECORDS)) {
                    map.put(run.first.after(number, chunk_blocks_log2), &mut bytes);
                }
                bytes
            })
        })
    }

    fn chunk_blocks_log2(&self) -> u8 {
        self.chunks.chunk_blocks_log2.saturating_add(self.enlargement_log2)
    }

    fn record_count(&self) -> u64 {
        self.records(self.chunks.count)
    }

    /// The number of records for `chunk_count` chunks.
    fn records(&self, chunk_count: u64) -> u64 {
        chunk_count.div_ceil(1 << self.enlargement_log2)
    }

    fn put(&self, chunk: Chunk, bytes: &mut Vec<u8>) {
        let (device_id, block) = match chunk {
            Chunk::Hole if self.is_wide => (0, format::NULL_ADDR_48),
            Chunk::Hole => (0, u64::from(format::NULL_ADDR_32)),
            Chunk::Blocks { device, block } => (device, block),
        };
        if self.has_indexes {
            let (startblk_hi, startblk_lo) = (high_u16(block), low_u32(block));
            bytes.extend(InodeChunkIndex { startblk_hi, device_id, startblk_lo }.to_bytes());
        } else {
            bytes.extend(low_u32(block).to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(block: u64) -> Chunk {
        Chunk::Blocks { device: 0, block }
    }

    #[test]
    fn chunks_grow_as_far_as_runs_allow() {
        let hole = Chunk::Hole;
        for (chunks, blocks_log2, records) in [
            (&[at(7)][..], 0, &[7u32][..]),
            (&[at(7), at(8), at(9)], 2, &[7]),
            (&[at(7), at(8), at(9), at(20)], 0, &[7, 8, 9, 20]),
            (&[at(7), at(8), at(20), at(21), at(22)], 1, &[7, 20, 22]),
            (&[hole, hole, hole, hole, at(3)], 2, &[u32::MAX, 3]),
            (&[at(3), hole, at(4)], 0, &[3, u32::MAX, 4]),
            (&[], 0, &[]),
        ] {
            let mut list = Chunks::new(0);
            chunks.iter().for_each(|chunk| list.push(*chunk));
            let map = ChunkMap::new(&list, false);
            let bytes: Vec<u8> = map.parts().flatten().collect();
            let found: Vec<u32> =
                bytes.chunks_exact(4).filter_map(|word| Some(u32::from_le_bytes(word.try_into().ok()?))).collect();
            assert_eq!((map.format(), found.as_slice()), (blocks_log2, records), "{chunks:?}");
            assert_eq!(u64::try_from(bytes.len()), Ok(map.len()));
        }
    }

    #[test]
    fn a_huge_hole_needs_one_record() {
        let mut list = Chunks::new(0);
        list.push_holes(1 << 28);
        assert_eq!(ChunkMap::new(&list, false).len(), 4);
        list.push(at(9));
        let map = ChunkMap::new(&list, true);
        assert_eq!((map.len(), map.parts().map(|part| part.len()).sum::<usize>()), (16, 16));
        list.push_holes(1 << 20);
        assert_eq!(ChunkMap::new(&list, false).len(), ((1 << 28) + (1 << 20) + 1) * 4);
    }
}
