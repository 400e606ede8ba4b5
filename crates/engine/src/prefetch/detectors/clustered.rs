//! Parts of files that are read piece by piece, in no order.

use std::sync::{
    OnceLock,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use floe_image::{ByteRange, Nid};

/// Files are watched in regions of so many bytes.
const REGION_BYTES: u64 = 128 << 10;

/// How many regions are told apart.
const REGION_COUNT: usize = 1 << 16;

/// A region is hot at its third small read: the first says nothing, a second may be chance.
const HOT_READS: u64 = 3;

/// Reads of a region count together only if no more than about so many other small reads lie between them: those who read
/// all over a large image also come by everywhere a third time.
const NEAR_READS: u64 = 1 << 12;

/// No request of more bytes is a small read.
const SMALL_BYTES: u64 = 16 << 10;

/// An entry of the table: how many reads were counted, when the last was, in quarters of [`NEAR_READS`], and whose they
/// were.
const COUNT_BITS: u32 = 4;
const TIME_BITS: u32 = 28;

/// Which parts of files are read piece by piece. Regions are told apart by a table of their hashes; two that meet in it,
/// and two threads that meet at one of them, disturb each other, which costs speed alone.
#[derive(Default)]
pub(crate) struct HotRegions {
    read_count: AtomicU64,
    /// 512 KiB, made for the first small read: images that are not mounted never have one.
    table: OnceLock<Box<[AtomicU64]>>,
}

impl HotRegions {
    /// Notes a read; gives the region that it has made hot.
    pub(crate) fn note(&self, nid: Nid, range: ByteRange) -> Option<ByteRange> {
        if range.len() > SMALL_BYTES {
            return None;
        }
        let number = range.offset() / REGION_BYTES;
        let hash = (nid.0 ^ number.rotate_left(40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let table = self.table.get_or_init(|| (0..REGION_COUNT).map(|_| AtomicU64::new(0)).collect());
        let entry = &table[(hash >> 48) as usize % REGION_COUNT];
        let (owner, time_max, count_max) =
            (hash << (COUNT_BITS + TIME_BITS), (1 << TIME_BITS) - 1, (1 << COUNT_BITS) - 1);
        let now = (self.read_count.fetch_add(1, Relaxed) / (NEAR_READS / 4)) & time_max;
        let seen = entry.load(Relaxed);
        let is_same = seen >> (COUNT_BITS + TIME_BITS) == owner >> (COUNT_BITS + TIME_BITS);
        let is_near = now.wrapping_sub(seen >> COUNT_BITS) & time_max <= 4;
        let reads = if is_same && is_near { (seen & count_max) + 1 } else { 1 };
        entry.store(owner | now << COUNT_BITS | reads.min(count_max), Relaxed);
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
        assert_eq!(note(0, SMALL_BYTES + 1), None);
        assert!(regions.table.get().is_none(), "large reads need no table");
        assert_eq!([note(131_072, 4096), note(139_264, 4096), note(0, 4096)], [None; 3]);
        assert_eq!(note(262_143, 1), Some(ByteRange::new(131_072, 131_072)));
        assert_eq!([note(131_072, 4096), note(0, 131_072), note(0, 131_072)], [None; 3]);
    }

    #[test]
    fn only_reads_that_are_near_each_other_in_time_count_together() {
        let regions = HotRegions::default();
        let note = |nid| regions.note(Nid(nid), ByteRange::new(0, 4096));
        let wait = |reads: u64| {
            (0..reads).for_each(|_| {
                let _ = note(7);
            })
        };
        assert_eq!([note(5), note(5)], [None; 2]);
        wait(2 * NEAR_READS);
        assert_eq!(note(5), None, "that is the first again");
        wait(NEAR_READS / 2);
        assert_eq!(note(5), None);
        wait(NEAR_READS / 2);
        assert!(note(5).is_some());
    }
}
