//! Where files are parted, so that what is repeated is stored once.
//!
//! An extent can only refer to a pcluster's beginning. So where something begins that is repeated later, a pcluster has
//! to begin: that is a cut. And an lcluster can have the beginning of one extent only, so what parts a file must not come
//! too close.

use std::collections::{BTreeSet, HashMap};

use crate::repeats::Repeat;

/// What parts a file is at least this many blocks from the next of its kind, so that extents have room in between.
const DISTANCE_BLOCKS: u64 = 2;

/// How one file is parted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Parting {
    /// What was there before, in its order, apart from each other.
    pub(crate) repeats: Vec<Repeat>,
    /// Where pclusters have to begin, because a repeat refers to them.
    pub(crate) cuts: BTreeSet<u64>,
    /// All places where a repeat begins or ends, and the cuts.
    bounds: BTreeSet<u64>,
}

/// How files are parted, by their places.
#[derive(Clone, Debug, Default)]
pub(crate) struct Partings {
    files: HashMap<usize, Parting>,
    block_size: u64,
    repeat_len_min: u64,
}

impl Partings {
    /// No file is parted yet.
    pub(crate) fn new(block_size: u64, repeat_len_min: u64) -> Self {
        Self { files: HashMap::new(), block_size, repeat_len_min }
    }

    /// Adds how other files are parted.
    pub(crate) fn join(&mut self, others: Self) {
        self.files.extend(others.files);
    }

    /// How a file is parted, if it is.
    pub(crate) fn of(&self, place: usize) -> Option<&Parting> {
        self.files.get(&place)
    }

    /// Parts the file at `place`, of this size, and the one in which the repeat was before, so that it can refer to that;
    /// the repeat becomes shorter, or is passed over, where that cannot be. Those of a file come in their order.
    pub(crate) fn add(&mut self, place: usize, size: u64, repeat: Repeat) {
        let Some(repeat) = self.fitting(place, size, repeat) else { return };
        let cut_file = self.files.entry(repeat.source).or_default();
        cut_file.cuts.insert(repeat.source_start);
        cut_file.bounds.insert(repeat.source_start);
        let file = self.files.entry(place).or_default();
        file.bounds.extend([repeat.start, repeat.end()]);
        file.repeats.push(repeat);
    }

    /// The repeat, or as much of it as keeps a distance from what parts the two files.
    fn fitting(&self, place: usize, size: u64, mut repeat: Repeat) -> Option<Repeat> {
        let none = Parting::default();
        let file = self.files.get(&place).unwrap_or(&none);
        let source = self.files.get(&repeat.source).unwrap_or(&none);
        // Each of them may bring it nearer to what another one keeps away from, but only by going on.
        loop {
            let skips = [
                self.skip_from_bounds(file, repeat.start),
                self.skip_from_bounds(source, repeat.source_start),
                self.skip_to_lclusters(&repeat),
            ];
            match skips.into_iter().max() {
                None | Some(0) => break,
                Some(len) => repeat.skip(len)?,
            }
        }
        let is_repeated_itself = source.repeat_across(repeat.source_start);
        if let Some(after) = file.bounds.range(repeat.start + 1..).next() {
            repeat.len = repeat.len.min(after - repeat.start);
            if (1..self.distance()).contains(&(after - repeat.end())) {
                repeat.len = (after - self.distance()).checked_sub(repeat.start)?;
            }
        }
        debug_assert!(repeat.end() <= size);
        (!is_repeated_itself && repeat.len >= self.repeat_len_min).then_some(repeat)
    }

    fn distance(&self) -> u64 {
        self.block_size * DISTANCE_BLOCKS
    }

    /// How much further on something can begin at the earliest: on a bound, or at a distance from those around.
    fn skip_from_bounds(&self, parting: &Parting, start: u64) -> u64 {
        let before = parting.bounds.range(..=start).next_back().copied().unwrap_or(0);
        let after = parting.bounds.range(start + 1..).next().copied();
        if start == before {
            return 0;
        }
        let earliest = start.max(before + self.distance());
        match after {
            Some(after) if after - earliest.min(after) < self.distance() => after - start,
            _ => earliest - start,
        }
    }

    /// Where both files can be parted between lclusters, even what does not compress can be.
    fn skip_to_lclusters(&self, repeat: &Repeat) -> u64 {
        let is_same = repeat.start % self.block_size == repeat.source_start % self.block_size;
        if is_same { repeat.start.next_multiple_of(self.block_size) - repeat.start } else { 0 }
    }
}

impl Parting {
    /// Whether a repeat begins before and ends after.
    fn repeat_across(&self, offset: u64) -> bool {
        let number = self.repeats.partition_point(|repeat| repeat.end() <= offset);
        self.repeats.get(number).is_some_and(|repeat| repeat.start < offset)
    }
}

impl Repeat {
    /// Where in the file it ends.
    pub(crate) fn end(&self) -> u64 {
        self.start + self.len
    }

    /// Begins later by so many bytes; `None` where nothing would be left.
    fn skip(&mut self, len: u64) -> Option<()> {
        self.len = self.len.checked_sub(len).filter(|len| *len > 0)?;
        self.start += len;
        self.source_start += len;
        Some(())
    }
}
