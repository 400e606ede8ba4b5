//! Which chunks to request with those that a reader waits for.

use std::ops::Range;

use crate::layout::ChunkIndex;

/// A region is dense if more than one in this many of its chunks around those that are wanted was read. The allowance for bytes
/// ahead of readers decides whether that is worthwhile.
const READ_PART: u64 = 10;

/// Where waits are long beside transfers: a region is dense if more than one in this many of its chunks is present or wanted.
const PRESENT_PART: u64 = 2;

/// The maximum size in units of a request for a reader that waits in a dense region. Further requests bring the rest.
const DENSE_UNITS_MAX: u64 = 4;

/// A missing or present chunk, as far as it says whether its neighbours will be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Presence {
    Missing,
    /// Fetched ahead of readers, and not read since.
    Unread,
    Read,
}

/// How chunks that may be read later are judged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Judgement {
    /// By what was read, and as far as an allowance permits: bytes in vain take as long as waits.
    Strict,
    /// By what is present: a wait takes much longer than the transfer of chunks in vain.
    Generous,
}

/// Chunks that a reader waits for, in an object of `data_chunks`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Wanted {
    pub(crate) chunks: Range<ChunkIndex>,
    /// The unit of the link in chunks, at least one.
    pub(crate) unit: u64,
    pub(crate) data_chunks: u64,
    pub(crate) judgement: Judgement,
}

/// The chunks to request for a reader, and the region of which the rest is to be fetched in the background.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct DenseRegion {
    pub(crate) reach: Range<ChunkIndex>,
    pub(crate) region: Range<ChunkIndex>,
}

impl Wanted {
    /// The aligned chunks around, in groups of `count`.
    pub(crate) fn around(&self, count: u64) -> Range<ChunkIndex> {
        let end = self.chunks.end.next_multiple_of(count).min(self.data_chunks);
        self.chunks.start / count * count..end.max(self.chunks.end)
    }

    /// The unit around chunks in one unit; the half units around those in several. A smaller unit if `permits` does not allow to fetch
    /// as many chunks ahead.
    pub(crate) fn rounded(&self, permits: impl Fn(u64) -> bool) -> Range<ChunkIndex> {
        let is_in_unit = self.chunks.start / self.unit == (self.chunks.end - 1) / self.unit;
        let unit = if is_in_unit { self.unit } else { self.unit / 2 };
        let units = std::iter::successors(Some(unit), |unit| Some(unit / 2)).take_while(|unit| *unit > 1);
        let rounded = |unit| {
            let around = self.around(unit);
            let count = (around.end - around.start) - (self.chunks.end - self.chunks.start);
            permits(count).then_some(around)
        };
        { units }.find_map(rounded).unwrap_or_else(|| self.chunks.clone())
    }

    /// The widest aligned region of at most `count_max` chunks around, of which enough other chunks were read, so that the rest is
    /// likely to be read, too. `presence` is that of the chunks from `widest` on, which is `around(count_max)`. `permits` decides
    /// whether as many chunks may be fetched ahead.
    pub(crate) fn dense_region(
        &self,
        count_max: u64,
        presence: &[Presence],
        permits: impl Fn(u64) -> bool,
    ) -> Option<DenseRegion> {
        let widest = self.around(count_max);
        let of = |index: ChunkIndex| {
            let place = index.checked_sub(widest.start).and_then(|place| usize::try_from(place).ok());
            place.and_then(|place| presence.get(place)).copied()
        };
        let others = |region: &Range<ChunkIndex>, wanted: Presence| {
            let is_other = |index: &ChunkIndex| !self.chunks.contains(index);
            region.clone().filter(is_other).filter(|index| of(*index) == Some(wanted)).count() as u64
        };
        let is_dense = |region: &Range<ChunkIndex>| {
            let other_count = (region.end - region.start) - (self.chunks.end - self.chunks.start);
            let missing_count = others(region, Presence::Missing);
            let is_dense = match self.judgement {
                Judgement::Strict => others(region, Presence::Read) * READ_PART > other_count,
                Judgement::Generous => missing_count * PRESENT_PART < region.end - region.start,
            };
            is_dense && missing_count > 0 && permits(missing_count)
        };
        let counts = std::iter::successors(Some(self.unit * 2), |count| count.checked_mul(2));
        let region =
            counts.take_while(|count| *count <= count_max).map(|count| self.around(count)).filter(is_dense).last()?;
        let near = self.around(self.unit * DENSE_UNITS_MAX);
        let is_missing = |index: &ChunkIndex| region.contains(index) && of(*index) == Some(Presence::Missing);
        let before = (near.start..self.chunks.start).rev().take_while(is_missing).count() as u64;
        let after = (self.chunks.end..near.end).take_while(is_missing).count() as u64;
        Some(DenseRegion { reach: self.chunks.start - before..self.chunks.end + after, region })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The presence of chunks from 0 on: `.` missing, `a` fetched ahead, `R` read, `w` wanted and missing.
    fn parsed(map: &str) -> (Vec<Presence>, Range<ChunkIndex>) {
        let presence = map.bytes().map(|byte| match byte {
            b'R' => Presence::Read,
            b'a' => Presence::Unread,
            _ => Presence::Missing,
        });
        let start = map.find('w').expect("chunks are wanted") as u64;
        (presence.collect(), start..start + map.matches('w').count() as u64)
    }

    #[test]
    fn requests_are_rounded_to_units_or_half_units() {
        for (chunks, unit, expected) in [
            (5..6, 1, 5..6),
            (5..8, 1, 5..8),
            (5..6, 4, 4..8),
            (5..9, 4, 4..10),
            (7..9, 4, 6..10),
            (0..20, 16, 0..24),
            (97..98, 16, 96..100),
        ] {
            let wanted = Wanted { chunks: chunks.clone(), unit, data_chunks: 100, judgement: Judgement::Strict };
            assert_eq!(wanted.rounded(|_| true), expected, "{chunks:?} {unit}");
        }
    }

    #[test]
    fn units_shrink_until_they_are_permitted() {
        let wanted = Wanted { chunks: 21..23, unit: 16, data_chunks: 100, judgement: Judgement::Strict };
        let rounded = |max| wanted.rounded(|count| count <= max);
        assert_eq!([14, 13, 6, 5, 2, 1, 0].map(rounded), [16..32, 16..24, 16..24, 20..24, 20..24, 21..23, 21..23]);
    }

    #[test]
    fn regions_are_dense_if_other_chunks_were_read() {
        for (map, unit, expected) in [
            // A reader that wants most of a region says nothing about the rest.
            ("www.....", 1, None),
            // Neither do chunks that were fetched ahead.
            ("aaawa...", 1, None),
            ("RRw.....", 1, Some((2..4, 0..8))),
            ("RRw.a...", 1, Some((2..4, 0..8))),
            ("RRw.R.RR", 1, Some((2..4, 0..8))),
            ("RRwR....", 1, Some((2..3, 0..8))),
            ("R...w......................R....", 1, Some((4..8, 0..8))),
            ("RRRRw...RRRRR..R", 2, Some((4..8, 0..16))),
            ("RRRRwRRR", 1, None),
        ] {
            let (presence, chunks) = parsed(map);
            let data_chunks = presence.len() as u64;
            let wanted = Wanted { chunks, unit, data_chunks, judgement: Judgement::Strict };
            let found = wanted.dense_region(presence.len() as u64, &presence, |_| true);
            assert_eq!(found.map(|found| (found.reach, found.region)), expected, "{map} {unit}");
        }
    }

    #[test]
    fn where_waits_are_long_present_and_wanted_chunks_make_a_region_dense() {
        for (map, expected) in [
            ("www.....", Some((0..4, 0..4))),
            ("aaawa...", Some((3..4, 0..8))),
            ("RRw.....", Some((2..4, 0..4))),
            ("w.......", None),
            ("R.w.....", None),
        ] {
            let (presence, chunks) = parsed(map);
            let data_chunks = presence.len() as u64;
            let wanted = Wanted { chunks, unit: 1, data_chunks, judgement: Judgement::Generous };
            let found = wanted.dense_region(data_chunks, &presence, |_| true);
            assert_eq!(found.map(|found| (found.reach, found.region)), expected, "{map}");
        }
    }

    #[test]
    fn narrower_regions_are_chosen_if_wide_ones_are_not_permitted() {
        let (presence, chunks) = parsed("RRw.R.RR");
        let wanted = Wanted { chunks, unit: 1, data_chunks: 8, judgement: Judgement::Strict };
        let region =
            |missing_max| wanted.dense_region(8, &presence, |count| count <= missing_max).map(|found| found.region);
        assert_eq!([0, 1, 2].map(region), [None, Some(0..4), Some(0..8)]);
    }
}
