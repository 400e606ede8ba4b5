//! Parts of files that are read piece by piece, in no order.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use floe_image::{ByteRange, Nid};

/// Files are watched in regions of so many bytes.
const REGION_BYTES: u64 = 128 << 10;

/// How many regions are told apart.
const REGION_COUNT: usize = 1 << 16;

/// A region is hot at its third small read: the first says nothing, a second may be chance.
const HOT_READS: u32 = 3;

/// No request of more bytes is a small read.
const SMALL_BYTES: u64 = 16 << 10;

/// How many bits of an entry of the table count reads; the others tell whose reads.
const COUNT_BITS: u32 = 3;

/// Which parts of files are read piece by piece. Regions are told apart by a table of their hashes; two that meet in it,
/// and two threads that meet at one of them, disturb each other, which costs speed alone.
pub(crate) struct HotRegions {
    table: Box<[AtomicU32]>,
}

impl Default for HotRegions {
    fn default() -> Self {
        Self { table: (0..REGION_COUNT).map(|_| AtomicU32::new(0)).collect() }
    }
}

impl HotRegions {
    /// Notes a read; gives the region that it has made hot.
    pub(crate) fn note(&self, nid: Nid, range: ByteRange) -> Option<ByteRange> {
        if range.len() > SMALL_BYTES {
            return None;
        }
        let number = range.offset() / REGION_BYTES;
        let hash = (nid.0 ^ number.rotate_left(40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let entry = &self.table[(hash >> 48) as usize % REGION_COUNT];
        let (owner, count_max) = ((hash as u32) << COUNT_BITS, (1 << COUNT_BITS) - 1);
        let seen = entry.load(Relaxed);
        let reads = if seen & !count_max == owner { (seen & count_max) + 1 } else { 1 };
        entry.store(owner | reads.min(count_max), Relaxed);
        (reads == HOT_READS).then(|| ByteRange::new(number * REGION_BYTES, REGION_BYTES))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_becomes_hot_once_and_by_small_reads_alone() {
        let regions = HotRegions::default();
        let note = |offset, len| regions.note(Nid(5), ByteRange::new(offset, len));
        assert_eq!([note(131_072, 4096), note(139_264, 4096), note(0, 4096)], [None; 3]);
        assert_eq!(note(262_143, 1), Some(ByteRange::new(131_072, 131_072)));
        assert_eq!([note(131_072, 4096), note(0, 131_072), note(0, 131_072)], [None; 3]);
    }
}
