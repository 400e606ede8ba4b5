//! The addresses of data in the virtual image.

use std::{
    collections::HashMap,
    sync::{PoisonError, RwLock},
};

use crate::geometry::{BLOCK_BYTES, DATA_BLOCK, LARGE_BLOCK, LARGE_BLOCK_COUNT, META_BLOCK};

/// The table of runs grows by this part of its size at a time, so that its unused capacity stays small.
const GROWTH_DIVISOR: usize = 4;

/// The metadata block number of retired runs, which belong to no data.
pub(crate) const RETIRED: u64 = u64::MAX;

/// The maximum number of unassigned blocks that one read retires: the kernel's readahead goes beyond the last assigned
/// block, and its page cache keeps the bytes.
const RETIRED_BLOCKS_MAX: u32 = 512;

/// A piece of data that needs addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Wanted {
    /// The index of the data within its metadata block: the number of a slot, or of a chunk.
    pub(crate) item: u32,
    /// The number of blocks; at least 1.
    pub(crate) block_count: u64,
}

/// The device that contains a piece of data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Device {
    /// The file with the metadata.
    Image,
    /// The large file. Its blocks follow [`LARGE_BLOCK`] here.
    Large,
}

/// Data that has addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    /// The metadata block that refers to it.
    pub(crate) metadata_block: u64,
    /// The index of the data within that block.
    pub(crate) item: u32,
    /// Its first block.
    pub(crate) start: u64,
    /// The block after its last.
    pub(crate) end: u64,
}

impl Run {
    /// The offset of its first byte.
    pub(crate) fn start_bytes(&self) -> u64 {
        self.start * BLOCK_BYTES
    }

    /// The offset of the byte after its last.
    pub(crate) fn end_bytes(&self) -> u64 {
        self.end * BLOCK_BYTES
    }
}

/// Assigns addresses to data when the metadata block that refers to it is rendered for the first time. Assignments are
/// permanent: consecutive runs of blocks, in the order of the first rendering.
///
/// It takes 8 bytes per run, and about 40 per metadata block that refers to data.
pub(crate) struct Addresses {
    image: Region,
    large: Region,
}

/// The addresses of one device.
struct Region {
    /// The number of its block 0 in [`Run`]s.
    base: u64,
    /// The block after the last one that data can have.
    end: u32,
    given: RwLock<Given>,
}

#[derive(Default)]
struct Given {
    /// The first block that is free.
    free: u32,
    runs: Vec<StoredRun>,
    /// Sorted by their first runs, and therefore by address.
    groups: Vec<Group>,
    group_of: HashMap<u64, u32>,
}

impl Default for Addresses {
    fn default() -> Self {
        Self { image: Region::new(0, DATA_BLOCK, META_BLOCK), large: Region::new(LARGE_BLOCK, 0, LARGE_BLOCK_COUNT) }
    }
}

struct StoredRun {
    start: u32,
    item: u32,
}

/// The runs of one metadata block.
struct Group {
    metadata_block: u64,
    first_run: u32,
    run_count: u32,
}

impl Addresses {
    /// Returns the first blocks on `device` of the data to which `metadata_block` refers, in the order of `wanted`.
    /// Each call returns the same blocks. `None` if there was no room at the first call.
    pub(crate) fn assign(&self, device: Device, metadata_block: u64, wanted: &[Wanted]) -> Option<Vec<u32>> {
        match device {
            Device::Image => self.image.assign(metadata_block, wanted),
            Device::Large => self.large.assign(metadata_block, wanted),
        }
    }

    /// The runs of the data that `metadata_block` refers to, in the order of their items; empty if it was not rendered yet.
    pub(crate) fn of(&self, metadata_block: u64) -> Vec<Run> {
        let mut runs = self.image.of(metadata_block);
        runs.extend(self.large.of(metadata_block));
        runs.sort_by_key(|run| run.item);
        runs
    }

    /// Retires the unassigned blocks from `start` to `end`: they are never assigned, because the kernel reads them now
    /// and its page cache keeps the bytes. Returns `false` if there are too many.
    pub(crate) fn retire(&self, start: u64, end: u64) -> bool {
        self.region(start).retire(start, end)
    }

    /// The data at `block`, if there is any.
    pub(crate) fn find(&self, block: u64) -> Option<Run> {
        self.region(block).find(block)
    }

    fn region(&self, block: u64) -> &Region {
        if block < self.large.base { &self.image } else { &self.large }
    }
}

impl Region {
    fn new(base: u64, start: u32, end: u32) -> Self {
        let given = Given { free: start, ..Given::default() };
        Self { base, end, given: RwLock::new(given) }
    }

    fn assign(&self, metadata_block: u64, wanted: &[Wanted]) -> Option<Vec<u32>> {
        if wanted.is_empty() {
            return Some(Vec::new());
        }
        if let Some(group) = self.given.read().unwrap_or_else(PoisonError::into_inner).starts(metadata_block) {
            return group;
        }
        let mut given = self.given.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(group) = given.starts(metadata_block) {
            return group;
        }
        given.add(metadata_block, wanted, self.end);
        given.starts(metadata_block).flatten()
    }

    fn of(&self, metadata_block: u64) -> Vec<Run> {
        let given = self.given.read().unwrap_or_else(PoisonError::into_inner);
        let Some(group) = given.group_of.get(&metadata_block).and_then(|group| given.groups.get(*group as usize))
        else {
            return Vec::new();
        };
        let first = group.first_run as usize;
        (first..first + group.run_count as usize).filter_map(|run| given.run(self.base, group, run)).collect()
    }

    fn retire(&self, start: u64, end: u64) -> bool {
        let mut given = self.given.write().unwrap_or_else(PoisonError::into_inner);
        let free = self.base + u64::from(given.free);
        if start < free {
            // Another thread has assigned or retired them meanwhile.
            return true;
        }
        let room_end = u64::from(given.free.saturating_add(RETIRED_BLOCKS_MAX).min(self.end));
        let end = end.min(self.base + room_end);
        if end > start {
            given.add_retired((end - self.base) as u32);
        }
        end > start
    }

    fn find(&self, block: u64) -> Option<Run> {
        let given = self.given.read().unwrap_or_else(PoisonError::into_inner);
        let block = u32::try_from(block.checked_sub(self.base)?).ok().filter(|block| *block < given.free)?;
        let run = given.runs.partition_point(|run| run.start <= block).checked_sub(1)?;
        let group = given.groups.partition_point(|group| group.first_run as usize <= run).checked_sub(1)?;
        given.run(self.base, given.groups.get(group)?, run)
    }
}

impl Given {
    /// The first blocks of a group; the inner `None` if there was no room for it.
    fn starts(&self, metadata_block: u64) -> Option<Option<Vec<u32>>> {
        let group = self.groups.get(*self.group_of.get(&metadata_block)? as usize)?;
        let first = group.first_run as usize;
        let runs = self.runs.get(first..first + group.run_count as usize)?;
        Some((!runs.is_empty()).then(|| runs.iter().map(|run| run.start).collect()))
    }

    /// A run, with blocks that follow `base`.
    fn run(&self, base: u64, group: &Group, run: usize) -> Option<Run> {
        let StoredRun { start, item } = *self.runs.get(run)?;
        let end = self.runs.get(run + 1).map_or(self.free, |next| next.start);
        let (start, end) = (base + u64::from(start), base + u64::from(end));
        Some(Run { metadata_block: group.metadata_block, item, start, end })
    }

    /// Retires the blocks from the first free one to `end`.
    fn add_retired(&mut self, end: u32) {
        let extends_last = self.groups.last().is_some_and(|group| group.metadata_block == RETIRED);
        if !extends_last {
            self.groups.push(Group { metadata_block: RETIRED, first_run: self.runs.len() as u32, run_count: 1 });
            self.runs.push(StoredRun { start: self.free, item: 0 });
        }
        self.free = end;
    }

    /// Assigns blocks before `end` to a group.
    fn add(&mut self, metadata_block: u64, wanted: &[Wanted], end: u32) {
        let room = u64::from(end.saturating_sub(self.free));
        let block_count = wanted.iter().try_fold(0u64, |sum, data| sum.checked_add(data.block_count));
        let fits = block_count.is_some_and(|count| count <= room)
            && u32::try_from(self.runs.len() + wanted.len()).is_ok()
            && u32::try_from(self.groups.len()).is_ok();
        let added = if fits { wanted } else { &[] };
        let first_run = self.runs.len() as u32;
        if self.runs.capacity() < self.runs.len() + added.len() {
            self.runs.reserve_exact(added.len() + self.runs.len() / GROWTH_DIVISOR);
        }
        for Wanted { item, block_count } in added {
            self.runs.push(StoredRun { start: self.free, item: *item });
            self.free += *block_count as u32;
        }
        self.group_of.insert(metadata_block, self.groups.len() as u32);
        self.groups.push(Group { metadata_block, first_run, run_count: added.len() as u32 });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_stay_and_lead_back() {
        let addresses = Addresses::default();
        let wanted = |sizes: &[u64]| -> Vec<Wanted> {
            (7..).zip(sizes).map(|(item, block_count)| Wanted { item, block_count: *block_count }).collect()
        };
        let whole = u64::from(META_BLOCK);
        for (metadata_block, sizes, expected) in [
            (90, &[1, 3, 1][..], Some(vec![256, 257, 260])),
            (12, &[], Some(vec![])),
            (13, &[2], Some(vec![261])),
            (14, &[whole], None),
            (15, &[u64::MAX, 2], None),
            (16, &[4], Some(vec![263])),
            (90, &[1, 3, 1], Some(vec![256, 257, 260])),
            (14, &[whole], None),
        ] {
            assert_eq!(addresses.assign(Device::Image, metadata_block, &wanted(sizes)), expected, "{metadata_block}");
        }
        for (block, expected) in [
            (255, None),
            (256, Some((90, 7, 256, 257))),
            (259, Some((90, 8, 257, 260))),
            (260, Some((90, 9, 260, 261))),
            (262, Some((13, 7, 261, 263))),
            (266, Some((16, 7, 263, 267))),
            (267, None),
            (u32::MAX.into(), None),
            (LARGE_BLOCK, None),
        ] {
            let found = addresses.find(block).map(|run| (run.metadata_block, run.item, run.start, run.end));
            assert_eq!(found, expected, "{block}");
        }
        for (start, end, is_given) in
            [(267, 270, true), (268, 271, true), (270, 280, true), (275, 276, true), (280 + 512, 900, false)]
        {
            assert_eq!(addresses.retire(start, end), is_given, "{start}");
        }
        assert_eq!(addresses.assign(Device::Image, 17, &wanted(&[2])), Some(vec![280]));
        for (block, expected) in [(266, 16), (267, RETIRED), (279, RETIRED), (280, 17)] {
            assert_eq!(addresses.find(block).map(|run| run.metadata_block), Some(expected), "{block}");
        }
        assert_eq!(addresses.of(90).len(), 3);
        assert!(addresses.of(14).is_empty() && addresses.of(99).is_empty());
    }

    #[test]
    fn a_metadata_block_can_refer_to_data_on_both_devices() {
        let addresses = Addresses::default();
        let wanted = |item, block_count| Wanted { item, block_count };
        assert_eq!(addresses.assign(Device::Image, 90, &[wanted(1, 2), wanted(5, 1)]), Some(vec![256, 258]));
        assert_eq!(addresses.assign(Device::Large, 90, &[wanted(0, 32), wanted(3, 40)]), Some(vec![0, 32]));
        assert_eq!(addresses.assign(Device::Large, 91, &[wanted(0, LARGE_BLOCK_COUNT.into())]), None);
        let items: Vec<_> = addresses.of(90).iter().map(|run| (run.item, run.start, run.end)).collect();
        let large = |start, end| (LARGE_BLOCK + start, LARGE_BLOCK + end);
        let ((first, first_end), (last, last_end)) = (large(0, 32), large(32, 72));
        assert_eq!(items, [(0, first, first_end), (1, 256, 258), (3, last, last_end), (5, 258, 259)]);
        assert_eq!(addresses.find(LARGE_BLOCK + 31).map(|run| run.item), Some(0));
        assert_eq!(addresses.find(LARGE_BLOCK + 72), None);
        assert!(addresses.retire(LARGE_BLOCK + 72, LARGE_BLOCK + 74));
        assert_eq!(addresses.find(LARGE_BLOCK + 73).map(|run| run.metadata_block), Some(RETIRED));
        assert_eq!(addresses.find(259), None);
    }
}
