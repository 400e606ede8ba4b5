//! The addresses of data in the virtual image.

use std::collections::HashMap;

use floe_sync::RwLock;

use crate::geometry::{BLOCK_BYTES, DATA_BLOCK, LARGE_BLOCK, LARGE_BLOCK_COUNT, LISTING_BLOCK, META_BLOCK};

/// The table of runs grows by this part of its size at a time, so that its unused capacity stays small.
const GROWTH_DIVISOR: usize = 4;

/// The metadata block number of retired runs, which belong to no data.
pub(crate) const RETIRED: u64 = u64::MAX;

/// The index of no run, and of no group.
const NONE: u32 = u32::MAX;

/// The maximum number of unassigned blocks that one read retires: the kernel's readahead goes beyond the last assigned
/// block, and its page cache keeps the bytes.
const RETIRED_BLOCKS_MAX: u32 = 512;

/// A piece of data that needs addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Wanted {
    /// The metadata block that refers to it.
    pub(crate) metadata_block: u64,
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
    /// The part of that file for directories and symbolic links.
    Listings,
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

/// Assigns addresses to data when a listing names its file for the first time, or when the metadata block that refers to it is
/// rendered for the first time. Assignments are permanent: consecutive runs of blocks, in this order.
///
/// It takes 16 bytes per run, and about 40 per metadata block that refers to data.
pub(crate) struct Addresses {
    image: Region,
    listings: Region,
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
    /// Sorted by address.
    runs: Vec<StoredRun>,
    groups: Vec<Group>,
    group_of: HashMap<u64, u32>,
}

impl Default for Addresses {
    fn default() -> Self {
        Self {
            image: Region::new(0, DATA_BLOCK, LISTING_BLOCK),
            listings: Region::new(0, LISTING_BLOCK, META_BLOCK),
            large: Region::new(LARGE_BLOCK, 0, LARGE_BLOCK_COUNT),
        }
    }
}

struct StoredRun {
    start: u32,
    item: u32,
    /// The group of its metadata block, or [`NONE`] if it is retired.
    group: u32,
    /// The next run of the group, or [`NONE`].
    next: u32,
}

/// The runs of one metadata block: a list in the order of their assignment.
struct Group {
    metadata_block: u64,
    first_run: u32,
    last_run: u32,
}

impl Addresses {
    /// Returns the first block of each piece of data in `wanted`, which all belong on `device` and differ. Each call returns the
    /// same blocks. `None` for a piece for which there was no room at the first call.
    pub(crate) fn assign(&self, device: Device, wanted: &[Wanted]) -> Vec<Option<u32>> {
        match device {
            Device::Image => self.image.assign(wanted),
            Device::Listings => self.listings.assign(wanted),
            Device::Large => self.large.assign(wanted),
        }
    }

    /// The runs of the data that `metadata_block` refers to, in the order of their items; empty if none has addresses yet.
    pub(crate) fn of(&self, metadata_block: u64) -> Vec<Run> {
        let mut runs = self.image.of(metadata_block);
        runs.extend(self.listings.of(metadata_block));
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
        match block {
            LARGE_BLOCK.. => &self.large,
            block if block >= LISTING_BLOCK.into() => &self.listings,
            _ => &self.image,
        }
    }
}

impl Region {
    fn new(base: u64, start: u32, end: u32) -> Self {
        let given = Given { free: start, ..Given::default() };
        Self { base, end, given: RwLock::new(given) }
    }

    fn assign(&self, wanted: &[Wanted]) -> Vec<Option<u32>> {
        let known = self.given.read().known(wanted);
        if known.iter().all(Option::is_some) {
            return known;
        }
        let mut given = self.given.write();
        let known = given.known(wanted);
        wanted.iter().zip(known).map(|(data, known)| known.or_else(|| given.add(data, self.end))).collect()
    }

    fn of(&self, metadata_block: u64) -> Vec<Run> {
        let given = self.given.read();
        given.runs_of(metadata_block).filter_map(|(index, _)| given.run(self.base, index as usize)).collect()
    }

    fn retire(&self, start: u64, end: u64) -> bool {
        let mut given = self.given.write();
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
        let given = self.given.read();
        let block = u32::try_from(block.checked_sub(self.base)?).ok().filter(|block| *block < given.free)?;
        let run = given.runs.partition_point(|run| run.start <= block).checked_sub(1)?;
        given.run(self.base, run)
    }
}

impl Given {
    /// The first block of each piece of data in `wanted`; `None` for those without addresses.
    fn known(&self, wanted: &[Wanted]) -> Vec<Option<u32>> {
        // Data is mostly asked for in the order of its assignment: the search continues behind the last result.
        let (mut block, mut rest) = (None, None);
        let mut known = Vec::with_capacity(wanted.len());
        for data in wanted {
            if block != Some(data.metadata_block) {
                (block, rest) = (Some(data.metadata_block), None);
            }
            let mut rest_or_all = rest.take().unwrap_or_else(|| self.runs_of(data.metadata_block));
            let is_it = |(_, run): &(u32, &StoredRun)| run.item == data.item;
            let found = rest_or_all.find(is_it).or_else(|| {
                rest_or_all = self.runs_of(data.metadata_block);
                rest_or_all.find(is_it)
            });
            known.push(found.map(|(_, run)| run.start));
            rest = found.map(|_| rest_or_all);
        }
        known
    }

    /// The runs of a metadata block, with their indexes.
    fn runs_of(&self, metadata_block: u64) -> RunsOfGroup<'_> {
        let group = self.group_of.get(&metadata_block).and_then(|group| self.groups.get(*group as usize));
        RunsOfGroup { runs: &self.runs, next: group.map_or(NONE, |group| group.first_run) }
    }

    /// A run, with blocks that follow `base`.
    fn run(&self, base: u64, index: usize) -> Option<Run> {
        let StoredRun { start, item, group, .. } = *self.runs.get(index)?;
        let end = self.runs.get(index + 1).map_or(self.free, |next| next.start);
        let (start, end) = (base + u64::from(start), base + u64::from(end));
        let metadata_block = self.groups.get(group as usize).map_or(RETIRED, |group| group.metadata_block);
        Some(Run { metadata_block, item, start, end })
    }

    /// Retires the blocks from the first free one to `end`.
    fn add_retired(&mut self, end: u32) {
        if self.runs.last().is_none_or(|run| run.group != NONE) {
            self.runs.push(StoredRun { start: self.free, item: 0, group: NONE, next: NONE });
        }
        self.free = end;
    }

    /// Assigns blocks before `end` to data, and returns the first one. `None` if there is no room.
    fn add(&mut self, data: &Wanted, end: u32) -> Option<u32> {
        let room = u64::from(end.saturating_sub(self.free));
        let run = u32::try_from(self.runs.len()).ok().filter(|run| *run != NONE && data.block_count <= room)?;
        let next_group = self.groups.len() as u32;
        let group = *self.group_of.entry(data.metadata_block).or_insert(next_group);
        match self.groups.get_mut(group as usize) {
            Some(group) => {
                if let Some(last) = self.runs.get_mut(group.last_run as usize) {
                    last.next = run;
                }
                group.last_run = run;
            }
            None => {
                self.groups.push(Group { metadata_block: data.metadata_block, first_run: run, last_run: run });
            }
        }
        if self.runs.capacity() == self.runs.len() {
            self.runs.reserve_exact(1 + self.runs.len() / GROWTH_DIVISOR);
        }
        let start = self.free;
        self.runs.push(StoredRun { start, item: data.item, group, next: NONE });
        self.free += data.block_count as u32;
        Some(start)
    }
}

/// The runs of a group, with their indexes.
struct RunsOfGroup<'given> {
    runs: &'given [StoredRun],
    next: u32,
}

impl<'given> Iterator for RunsOfGroup<'given> {
    type Item = (u32, &'given StoredRun);

    fn next(&mut self) -> Option<Self::Item> {
        let run = self.runs.get(self.next as usize)?;
        Some((std::mem::replace(&mut self.next, run.next), run))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(metadata_block: u64, first_item: u32, sizes: &[u64]) -> Vec<Wanted> {
        let wanted = |(item, block_count): (u32, &u64)| Wanted { metadata_block, item, block_count: *block_count };
        (first_item..).zip(sizes).map(wanted).collect()
    }

    #[test]
    fn addresses_stay_and_lead_back() {
        let addresses = Addresses::default();
        let whole = u64::from(META_BLOCK);
        for (metadata_block, sizes, expected) in [
            (90, &[1, 3, 1][..], &[Some(256), Some(257), Some(260)][..]),
            (12, &[], &[]),
            (13, &[2], &[Some(261)]),
            (14, &[whole], &[None]),
            (15, &[u64::MAX], &[None]),
            (16, &[4], &[Some(263)]),
            (90, &[1, 3, 1], &[Some(256), Some(257), Some(260)]),
            (14, &[whole], &[None]),
        ] {
            let assigned = addresses.assign(Device::Image, &wanted(metadata_block, 7, sizes));
            assert_eq!(assigned, expected, "{metadata_block}");
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
        assert_eq!(addresses.assign(Device::Image, &wanted(17, 7, &[2])), [Some(280)]);
        for (block, expected) in [(266, 16), (267, RETIRED), (279, RETIRED), (280, 17)] {
            assert_eq!(addresses.find(block).map(|run| run.metadata_block), Some(expected), "{block}");
        }
        assert_eq!(addresses.of(90).len(), 3);
        assert!(addresses.of(14).is_empty() && addresses.of(99).is_empty());
    }

    #[test]
    fn a_metadata_block_can_refer_to_data_on_both_devices() {
        let addresses = Addresses::default();
        let wanted = |item, block_count| Wanted { metadata_block: 90, item, block_count };
        assert_eq!(addresses.assign(Device::Image, &[wanted(1, 2), wanted(5, 1)]), [Some(256), Some(258)]);
        assert_eq!(addresses.assign(Device::Large, &[wanted(0, 32), wanted(3, 40)]), [Some(0), Some(32)]);
        assert_eq!(addresses.assign(Device::Large, &[wanted(9, LARGE_BLOCK_COUNT.into())]), [None]);
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

    #[test]
    fn pieces_of_a_metadata_block_can_be_assigned_at_different_times() {
        let addresses = Addresses::default();
        let piece = |metadata_block, item, block_count| Wanted { metadata_block, item, block_count };
        let listed = [piece(90, 3, 2), piece(91, 0, 1), piece(90, 1, 1)];
        assert_eq!(addresses.assign(Device::Image, &listed), [Some(256), Some(258), Some(259)]);
        let rendered = [piece(90, 0, 5), piece(90, 1, 1), piece(90, 2, 1), piece(90, 3, 2)];
        for _ in 0..2 {
            let assigned = addresses.assign(Device::Image, &rendered);
            assert_eq!(assigned, [Some(260), Some(259), Some(265), Some(256)]);
        }
        assert_eq!(addresses.assign(Device::Image, &listed), [Some(256), Some(258), Some(259)]);
        let runs: Vec<_> = addresses.of(90).iter().map(|run| (run.item, run.start, run.end)).collect();
        assert_eq!(runs, [(0, 260, 265), (1, 259, 260), (2, 265, 266), (3, 256, 258)]);
        let found = [256, 258, 264].map(|block| addresses.find(block).map(|run| (run.metadata_block, run.item)));
        assert_eq!(found, [Some((90, 3)), Some((91, 0)), Some((90, 0))]);
    }
}
