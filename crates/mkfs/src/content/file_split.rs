//! Splits files so that repeated data is stored once.
//!
//! An extent can only refer to the beginning of a pcluster. So a pcluster must begin at each position to which a repeat
//! refers; such a position is a cut. An lcluster can contain the beginning of only one extent, so boundaries must have
//! a minimum distance.

use std::collections::{BTreeSet, HashMap};

/// The minimum distance of two boundaries in a file, in blocks, so that extents fit in between.
const DISTANCE_BLOCKS: u64 = 2;

/// A run of bytes that occurs earlier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Repeat {
    /// The offset in the file.
    pub(crate) start: u64,
    /// The length in bytes.
    pub(crate) len: u64,
    /// The index of the source file in tree order.
    pub(crate) source: usize,
    /// The offset in the source file.
    pub(crate) source_start: u64,
}

/// The split of one file.
#[derive(Clone, Debug, Default)]
pub(crate) struct FileSplit {
    /// The repeats in order, disjoint.
    pub(crate) repeats: Vec<Repeat>,
    /// Where pclusters must begin because repeats refer to them.
    pub(crate) cuts: BTreeSet<u64>,
    /// All cuts, and the beginnings and ends of repeats.
    bounds: BTreeSet<u64>,
}

/// The splits of files, indexed in tree order.
#[derive(Clone, Debug, Default)]
pub(crate) struct FileSplits {
    files: HashMap<usize, FileSplit>,
    block_size: u64,
    repeat_len_min: u64,
}

impl FileSplits {
    /// Creates an empty set.
    pub(crate) fn new(block_size: u64, repeat_len_min: u64) -> Self {
        Self { files: HashMap::new(), block_size, repeat_len_min }
    }

    /// Merges the splits of other files.
    pub(crate) fn join(&mut self, others: Self) {
        self.files.extend(others.files);
    }

    /// The split of a file, if it has one.
    pub(crate) fn of(&self, place: usize) -> Option<&FileSplit> {
        self.files.get(&place)
    }

    /// Splits the file at `place`, of this size, at a repeat, and the source file so that the repeat can refer to it.
    /// The repeat is shortened or dropped if that is impossible. The repeats of a file must be added in order.
    pub(crate) fn add(&mut self, place: usize, size: u64, repeat: Repeat) {
        let Some(repeat) = self.fitting(place, size, repeat) else { return };
        let cut_file = self.files.entry(repeat.source).or_default();
        cut_file.cuts.insert(repeat.source_start);
        cut_file.bounds.insert(repeat.source_start);
        let file = self.files.entry(place).or_default();
        file.bounds.extend([repeat.start, repeat.end()]);
        file.repeats.push(repeat);
    }

    /// The part of a repeat that keeps the minimum distance from the boundaries of both files.
    fn fitting(&self, place: usize, size: u64, mut repeat: Repeat) -> Option<Repeat> {
        let none = FileSplit::default();
        let file = self.files.get(&place).unwrap_or(&none);
        let source = self.files.get(&repeat.source).unwrap_or(&none);
        // One skip may bring the repeat closer to another boundary. Each skip advances, so the loop ends.
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

    /// The number of bytes from `start` to the next position that is an existing boundary, or at the minimum distance
    /// from all boundaries.
    fn skip_from_bounds(&self, split: &FileSplit, start: u64) -> u64 {
        let before = split.bounds.range(..=start).next_back().copied().unwrap_or(0);
        let after = split.bounds.range(start + 1..).next().copied();
        if start == before {
            return 0;
        }
        let earliest = start.max(before + self.distance());
        match after {
            Some(after) if after - earliest.min(after) < self.distance() => after - start,
            _ => earliest - start,
        }
    }

    /// The number of bytes by which a repeat must be shortened at its start, so that both files split between
    /// lclusters. Only such a split works for incompressible data.
    fn skip_to_lclusters(&self, repeat: &Repeat) -> u64 {
        let is_same = repeat.start % self.block_size == repeat.source_start % self.block_size;
        if is_same { repeat.start.next_multiple_of(self.block_size) - repeat.start } else { 0 }
    }
}

impl FileSplit {
    /// Whether a repeat spans `offset`.
    fn repeat_across(&self, offset: u64) -> bool {
        let number = self.repeats.partition_point(|repeat| repeat.end() <= offset);
        self.repeats.get(number).is_some_and(|repeat| repeat.start < offset)
    }
}

impl Repeat {
    /// The end of the repeat in its file.
    pub(crate) fn end(&self) -> u64 {
        self.start + self.len
    }

    /// Moves the beginning by `len` bytes; `None` if nothing would be left.
    fn skip(&mut self, len: u64) -> Option<()> {
        self.len = self.len.checked_sub(len).filter(|len| *len > 0)?;
        self.start += len;
        self.source_start += len;
        Some(())
    }
}
