//! Which addresses the data of a file has.

use std::{
    collections::HashMap,
    sync::{PoisonError, RwLock},
};

use crate::geometry::{DATA_BLOCK, META_BLOCK};

/// How much longer the table of runs gets at once: by this part of what it is, so that a copy of it never takes much memory.
const GROWTH_DIVISOR: usize = 4;

/// The metadata block of runs that nothing has.
pub(crate) const NOTHING: u64 = u64::MAX;

/// How many blocks behind the last that is given may be read, and then are nothing's: what the kernel reads ahead.
const NOTHING_BLOCKS_MAX: u32 = 512;

/// Data that wants addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Wanted {
    /// Which of the data that one metadata block names: the number of a slot in it, or of a chunk.
    pub(crate) item: u32,
    /// How many blocks it has; at least 1.
    pub(crate) block_count: u64,
}

/// Data that has addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    /// The metadata block that names it.
    pub(crate) metadata_block: u64,
    /// Which of the data that this block names.
    pub(crate) item: u32,
    /// Its first block.
    pub(crate) start: u32,
    /// The block after its last.
    pub(crate) end: u32,
}

/// Gives addresses to data when a metadata block that names it is first rendered, for good: a run of blocks for each, one
/// behind the other.
///
/// It takes 8 bytes for each run, and some 40 for each metadata block that names any.
#[derive(Default)]
pub(crate) struct Addresses {
    given: RwLock<Given>,
}

struct Given {
    /// The first block that is free.
    free: u32,
    runs: Vec<StoredRun>,
    /// By their first runs, and so by the addresses of these.
    groups: Vec<Group>,
    group_of: HashMap<u64, u32>,
}

impl Default for Given {
    fn default() -> Self {
        Self { free: DATA_BLOCK, runs: Vec::new(), groups: Vec::new(), group_of: HashMap::new() }
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
    /// The first blocks of what `metadata_block` names, in the order of `wanted`; the same each time. `None` where there was
    /// no room when it was first asked.
    pub(crate) fn assign(&self, metadata_block: u64, wanted: &[Wanted]) -> Option<Vec<u32>> {
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
        given.add(metadata_block, wanted);
        given.starts(metadata_block).flatten()
    }

    /// The first blocks of what `metadata_block` names, with the numbers of it; empty where it was not rendered yet.
    pub(crate) fn of(&self, metadata_block: u64) -> Vec<Run> {
        let given = self.given.read().unwrap_or_else(PoisonError::into_inner);
        let Some(group) = given.group_of.get(&metadata_block).and_then(|group| given.groups.get(*group as usize))
        else {
            return Vec::new();
        };
        let first = group.first_run as usize;
        (first..first + group.run_count as usize).filter_map(|run| given.run(group, run)).collect()
    }

    /// Gives the blocks from `start` to `end` to nothing, for good, as they are read before anything has them: what is read
    /// there stays in the kernel's page cache. `false` where so much cannot be given away.
    pub(crate) fn give_to_nothing(&self, start: u32, end: u32) -> bool {
        let mut given = self.given.write().unwrap_or_else(PoisonError::into_inner);
        if start < given.free {
            // Something has been given them meanwhile.
            return true;
        }
        let end = end.min(given.free.saturating_add(NOTHING_BLOCKS_MAX)).min(META_BLOCK);
        if end > start {
            given.add_nothing(end);
        }
        end > start
    }

    /// The data that has `block`, if any has.
    pub(crate) fn find(&self, block: u32) -> Option<Run> {
        let given = self.given.read().unwrap_or_else(PoisonError::into_inner);
        if block >= given.free {
            return None;
        }
        let run = given.runs.partition_point(|run| run.start <= block).checked_sub(1)?;
        let group = given.groups.partition_point(|group| group.first_run as usize <= run).checked_sub(1)?;
        given.run(given.groups.get(group)?, run)
    }
}

impl Given {
    /// The first blocks of a group; the inner `None` where it has none, since there was no room.
    fn starts(&self, metadata_block: u64) -> Option<Option<Vec<u32>>> {
        let group = self.groups.get(*self.group_of.get(&metadata_block)? as usize)?;
        let first = group.first_run as usize;
        let runs = self.runs.get(first..first + group.run_count as usize)?;
        Some((!runs.is_empty()).then(|| runs.iter().map(|run| run.start).collect()))
    }

    fn run(&self, group: &Group, run: usize) -> Option<Run> {
        let StoredRun { start, item } = *self.runs.get(run)?;
        let end = self.runs.get(run + 1).map_or(self.free, |next| next.start);
        Some(Run { metadata_block: group.metadata_block, item, start, end })
    }

    /// Gives the blocks from the first free one to `end` to nothing.
    fn add_nothing(&mut self, end: u32) {
        let extends_last = self.groups.last().is_some_and(|group| group.metadata_block == NOTHING);
        if !extends_last {
            self.groups.push(Group { metadata_block: NOTHING, first_run: self.runs.len() as u32, run_count: 1 });
            self.runs.push(StoredRun { start: self.free, item: 0 });
        }
        self.free = end;
    }

    fn add(&mut self, metadata_block: u64, wanted: &[Wanted]) {
        let room = u64::from(META_BLOCK - self.free);
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
            assert_eq!(addresses.assign(metadata_block, &wanted(sizes)), expected, "{metadata_block}");
        }
        for (block, expected) in [
            (255, None),
            (256, Some((90, 7, 256, 257))),
            (259, Some((90, 8, 257, 260))),
            (260, Some((90, 9, 260, 261))),
            (262, Some((13, 7, 261, 263))),
            (266, Some((16, 7, 263, 267))),
            (267, None),
            (u32::MAX, None),
        ] {
            let found = addresses.find(block).map(|run| (run.metadata_block, run.item, run.start, run.end));
            assert_eq!(found, expected, "{block}");
        }
        for (start, end, is_given) in
            [(267, 270, true), (268, 271, true), (270, 280, true), (275, 276, true), (280 + 512, 900, false)]
        {
            assert_eq!(addresses.give_to_nothing(start, end), is_given, "{start}");
        }
        assert_eq!(addresses.assign(17, &wanted(&[2])), Some(vec![280]));
        for (block, expected) in [(266, 16), (267, NOTHING), (279, NOTHING), (280, 17)] {
            assert_eq!(addresses.find(block).map(|run| run.metadata_block), Some(expected), "{block}");
        }
        assert_eq!(addresses.of(90).len(), 3);
        assert!(addresses.of(14).is_empty() && addresses.of(99).is_empty());
    }
}
