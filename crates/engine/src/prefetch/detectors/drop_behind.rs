//! Detects parts of sources that have been decoded completely.

use std::collections::VecDeque;

use floe_image::{ByteRange, DeviceId};
use floe_sync::Mutex;

use crate::{
    PAGE_BYTES,
    prefetch::thresholds::{DECODED_GAP_PART, DECODED_REGIONS_KEPT},
};

/// The size of a region of a source in bytes.
const REGION_BYTES: u64 = 1 << 20;

/// The number of regions that are tracked at a time.
const REGION_COUNT: usize = 1024;

const PAGES_OF_REGION: u64 = REGION_BYTES / PAGE_BYTES as u64;

/// A region counts as decoded once this many of its pages were read.
const DECODED_PAGES: u32 = (PAGES_OF_REGION - PAGES_OF_REGION / DECODED_GAP_PART) as u32;

/// Detects regions of the sources that have been read completely.
///
/// Decoded bytes are in the kernel's page cache as file data. Keeping the stored bytes there too would take memory, and
/// each new page of memory costs time. If stored bytes are read again, random readers still need them: their region
/// then no longer counts as decoded, and its detection starts anew.
#[derive(Default)]
pub(crate) struct DropBehind {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Allocated at the first read.
    regions: Vec<Region>,
    decoded: VecDeque<(DeviceId, u64)>,
}

#[derive(Clone, Copy)]
struct Region {
    device: DeviceId,
    number: u64,
    /// A bit for each page that was read.
    read: [u64; (PAGES_OF_REGION / 64) as usize],
    is_decoded: bool,
}

/// The effect of a read on its region.
enum Change {
    None,
    /// The region has now been read completely.
    IsDecoded,
    /// A part of the region was read again.
    IsReread,
}

impl Region {
    fn new(device: DeviceId, number: u64) -> Self {
        Self { device, number, read: [0; (PAGES_OF_REGION / 64) as usize], is_decoded: false }
    }

    /// Notes that the bytes from `start` to `end` of the region were read.
    fn note(&mut self, start: u64, end: u64) -> Change {
        let page = PAGE_BYTES as u64;
        // A page that is read only in part may belong to a neighbouring block too.
        let first_whole = start.div_ceil(page);
        if first_whole < end / page && self.has(first_whole) {
            self.read = Default::default();
            self.is_decoded = false;
            return Change::IsReread;
        }
        for number in start / page..end.div_ceil(page) {
            self.read[(number / 64) as usize] |= 1 << (number % 64);
        }
        let was_decoded = self.is_decoded;
        self.is_decoded = self.read.iter().map(|pages| pages.count_ones()).sum::<u32>() >= DECODED_PAGES;
        if self.is_decoded && !was_decoded { Change::IsDecoded } else { Change::None }
    }

    fn has(&self, page: u64) -> bool {
        self.read[(page / 64) as usize] >> (page % 64) & 1 == 1
    }
}

impl DropBehind {
    /// Notes bytes that were read to be decoded, and returns a region that may leave the page cache.
    pub(crate) fn note(&self, device: DeviceId, range: ByteRange) -> Option<(DeviceId, ByteRange)> {
        let mut state = self.state.lock();
        if state.regions.is_empty() {
            state.regions = vec![Region::new(DeviceId(0), u64::MAX); REGION_COUNT];
        }
        let mut position = range.offset();
        while position < range.end() {
            let number = position / REGION_BYTES;
            let start = number * REGION_BYTES;
            let end = range.end().min(start + REGION_BYTES);
            let region = &mut state.regions[number as usize % REGION_COUNT];
            if region.number != number || region.device != device {
                *region = Region::new(device, number);
            }
            match region.note(position - start, end - start) {
                Change::None => {}
                Change::IsDecoded => state.decoded.push_back((device, number)),
                Change::IsReread => state.decoded.retain(|decoded| *decoded != (device, number)),
            }
            position = end;
        }
        if state.decoded.len() <= DECODED_REGIONS_KEPT {
            return None;
        }
        let (device, number) = state.decoded.pop_front()?;
        Some((device, ByteRange::new(number * REGION_BYTES, REGION_BYTES)))
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    /// Notes reads of blocks of this size in this order, and returns the numbers of the regions that may leave the cache.
    fn let_go(block_bytes: u64, blocks: impl IntoIterator<Item = u64>) -> Vec<u64> {
        let drop_behind = DropBehind::default();
        let note = |block: u64| drop_behind.note(DeviceId(0), ByteRange::new(block * block_bytes, block_bytes));
        blocks.into_iter().filter_map(note).map(|(_, range)| range.offset() / REGION_BYTES).collect()
    }

    #[test]
    fn regions_read_once_are_dropped_with_a_delay() {
        for block_bytes in [1000, 4096, 50_000, 65_536, 1 << 20] {
            let regions = 20 * REGION_BYTES / block_bytes;
            let gone = let_go(block_bytes, 0..regions);
            assert_eq!(gone[..10], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9], "{block_bytes}");
        }
        let of_two_readers = (0..160).flat_map(|block| [block, 320 + block]);
        assert!(let_go(65_536, of_two_readers).len() > 10);
    }

    #[test]
    fn regions_read_again_are_kept() {
        let mut random = floe_testkit::Random::new(1);
        let at_random: Vec<u64> = (0..20_000).map(|_| random.below(1600)).collect();
        let gone = let_go(65_536, at_random);
        assert!(gone.len() < 10, "{} of 100 regions, though each was read from 200 times", gone.len());
        assert!(let_go(65_536, (0..10_000).map(|index| index % 14)).is_empty());
    }
}
