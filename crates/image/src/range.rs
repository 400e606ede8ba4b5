//! Byte ranges, and sets of them.

use std::{collections::BTreeMap, fmt};

/// `len` bytes of a file or source, starting at `offset`. The end never overflows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ByteRange {
    offset: u64,
    len: u64,
}

impl ByteRange {
    /// `len` bytes from `offset` on, cut off at `u64::MAX`.
    pub const fn new(offset: u64, len: u64) -> Self {
        let room = u64::MAX - offset;
        Self { offset, len: if len < room { len } else { room } }
    }

    /// The bytes from `offset` up to but excluding `end`; empty if `end` is not past `offset`.
    pub const fn between(offset: u64, end: u64) -> Self {
        Self { offset, len: end.saturating_sub(offset) }
    }

    /// The offset of the first byte.
    pub const fn offset(self) -> u64 {
        self.offset
    }

    /// The length in bytes.
    pub const fn len(self) -> u64 {
        self.len
    }

    /// The offset after the last byte.
    pub const fn end(self) -> u64 {
        self.offset + self.len
    }

    /// Whether the range is empty.
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The bytes in both ranges; an empty range if there are none.
    pub fn intersection(self, other: Self) -> Self {
        Self::between(self.offset.max(other.offset), self.end().min(other.end()))
    }

    /// Whether this range contains every byte of `other`.
    pub fn contains(self, other: Self) -> bool {
        self.offset <= other.offset && other.end() <= self.end()
    }
}

impl fmt::Display for ByteRange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}..{}", self.offset, self.end())
    }
}

/// A set of bytes, stored as runs that neither touch nor overlap. Insertion and lookup take time logarithmic in the
/// number of runs, whatever their length.
#[derive(Clone, Default, Debug)]
pub struct ByteRangeSet {
    /// Maps the start of each run to its end.
    runs: BTreeMap<u64, u64>,
}

impl ByteRangeSet {
    /// Whether the set contains any byte of `range`.
    pub fn intersects(&self, range: ByteRange) -> bool {
        let last = self.runs.range(..range.end()).next_back();
        !range.is_empty() && last.is_some_and(|(_, end)| *end > range.offset())
    }

    /// Adds `range`; returns whether the set contained any of its bytes before.
    pub fn insert(&mut self, range: ByteRange) -> bool {
        let mut is_known = false;
        self.insert_new(range, |_| {}, |_| is_known = true);
        is_known
    }

    /// Adds `range` and passes each part that was not in the set before to `new`, in order.
    pub fn insert_each_new(&mut self, range: ByteRange, new: impl FnMut(ByteRange)) {
        self.insert_new(range, new, |_| {});
    }

    fn insert_new(&mut self, range: ByteRange, mut new: impl FnMut(ByteRange), mut known: impl FnMut(ByteRange)) {
        if range.is_empty() {
            return;
        }
        let (mut start, mut end) = (range.offset(), range.end());
        if let Some((before, before_end)) = self.runs.range(..=start).next_back()
            && *before_end >= start
        {
            start = *before;
        }
        let mut position = range.offset();
        // Each run removed here was inserted once, so the total work is linear in the insertions.
        while let Some((&run, &run_end)) = self.runs.range(start..=range.end()).next() {
            self.runs.remove(&run);
            let gap = ByteRange::between(position, run.min(range.end()));
            if !gap.is_empty() {
                new(gap);
            }
            let overlap = ByteRange::between(run, run_end).intersection(range);
            if !overlap.is_empty() {
                known(overlap);
            }
            position = position.max(run_end);
            end = end.max(run_end);
        }
        let gap = ByteRange::between(position, range.end());
        if !gap.is_empty() {
            new(gap);
        }
        self.runs.insert(start, end);
    }
}

#[cfg(test)]
mod tests {
    use super::{ByteRange, *};

    #[test]
    fn ends_never_overflow_and_intersections_never_invert() {
        assert_eq!(ByteRange::new(u64::MAX - 1, 10).end(), u64::MAX);
        assert!(ByteRange::between(9, 3).is_empty());
        let whole = ByteRange::new(10, 10);
        for (other, expected) in [
            (ByteRange::new(0, 5), 0),
            (ByteRange::new(0, 15), 5),
            (ByteRange::new(12, 3), 3),
            (ByteRange::new(15, 50), 5),
            (ByteRange::new(20, 1), 0),
        ] {
            assert_eq!(whole.intersection(other).len(), expected, "{other}");
        }
    }

    #[test]
    fn runs_merge_and_new_bytes_are_reported() {
        let mut set = ByteRangeSet::default();
        let range = ByteRange::between;
        for (start, end, expected, run_count) in [
            (10, 20, vec![(10, 20)], 1),
            (30, 40, vec![(30, 40)], 2),
            (20, 25, vec![(20, 25)], 2),
            (12, 18, vec![], 2),
            (5, 5, vec![], 2),
            (0, 50, vec![(0, 10), (25, 30), (40, 50)], 1),
            (50, 60, vec![(50, 60)], 1),
            (u64::MAX - 1, u64::MAX, vec![(u64::MAX - 1, u64::MAX)], 2),
        ] {
            let is_known = set.intersects(range(start, end));
            let mut found = Vec::new();
            set.insert_each_new(range(start, end), |new| found.push((new.offset(), new.end())));
            assert_eq!(found, expected, "{start}..{end}");
            let new_len: u64 = found.iter().map(|(start, end)| end - start).sum();
            assert_eq!(is_known, new_len < end - start, "{start}..{end}");
            assert_eq!(set.runs.len(), run_count, "{start}..{end}");
        }
        assert!(set.insert(range(59, 70)) && !set.insert(range(70, 71)) && set.intersects(range(70, 90)));
        assert!(!set.intersects(range(71, 90)) && !set.intersects(range(3, 3)));
    }
}
