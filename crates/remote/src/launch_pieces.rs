//! The pieces of an image that a launch reads.

use std::{collections::BTreeSet, fmt};

use floe_image::ByteRange;
use floe_remote_cache::PIECE_BYTES;

/// The maximum number of pieces: 256 MiB.
const PIECES_MAX: u64 = 1024;

/// The pieces of 256 KiB of an image that a launch reads, in the order in which they are fetched. The text form, such as
/// `0,708+12,1+17`, has the number of the first piece of each run, and the length of the run if it is longer than one piece.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct LaunchPieces {
    runs: Vec<ByteRange>,
}

impl LaunchPieces {
    /// The pieces of these ranges of an image of `len` bytes, sorted within each group.
    pub(crate) fn of(groups: &[Vec<ByteRange>], len: u64) -> Self {
        let (mut launch, mut left) = (Self::default(), PIECES_MAX);
        let mut earlier = BTreeSet::new();
        for group in groups {
            let ranges = group.iter().map(|range| range.intersection(ByteRange::new(0, len)));
            let ranges = ranges.filter(|range| !range.is_empty());
            let pieces: BTreeSet<u64> =
                ranges.flat_map(|range| range.offset() / PIECE_BYTES..=(range.end() - 1) / PIECE_BYTES).collect();
            pieces.difference(&earlier).for_each(|piece| launch.add(*piece, 1, len, &mut left));
            earlier.extend(pieces);
        }
        launch
    }

    /// Parses the text form. The pieces are only a hint, so parsing ends at the first syntax error, and pieces outside of the
    /// image are left out.
    pub(crate) fn parse(text: &str, len: u64) -> Self {
        let mut launch = Self::default();
        let mut left = PIECES_MAX;
        for run in text.split(',') {
            let (first, count) = run.split_once('+').unwrap_or((run, "1"));
            let (Ok(first), Ok(count)) = (first.parse(), count.parse()) else { break };
            launch.add(first, count, len, &mut left);
        }
        launch
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// The bytes of the pieces.
    pub(crate) fn runs(&self) -> &[ByteRange] {
        &self.runs
    }

    fn add(&mut self, first: u64, count: u64, len: u64, left: &mut u64) {
        let count = count.min(*left);
        let offset = first.saturating_mul(PIECE_BYTES);
        let run = ByteRange::new(offset, count.saturating_mul(PIECE_BYTES)).intersection(ByteRange::new(0, len));
        if run.is_empty() {
            return;
        }
        *left -= count;
        match self.runs.last_mut() {
            Some(last) if last.end() == run.offset() => *last = ByteRange::between(last.offset(), run.end()),
            _ => self.runs.push(run),
        }
    }
}

impl fmt::Display for LaunchPieces {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, run) in self.runs.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(formatter, "{comma}{}", run.offset() / PIECE_BYTES)?;
            let count = run.len().div_ceil(PIECE_BYTES);
            if count > 1 {
                write!(formatter, "+{count}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_written_and_read() {
        let len = 20 * PIECE_BYTES + 77;
        for (groups, expected) in [
            (&[&[][..]][..], ""),
            (&[&[(0, 1)]], "0"),
            (&[&[(len - 1, 1), (PIECE_BYTES - 1, 2), (PIECE_BYTES * 5, 10)]], "0+2,5,20"),
            (&[&[(0, 1), (len - 1, 1)], &[(0, 1), (PIECE_BYTES * 3, PIECE_BYTES + 1)]], "0,20,3+2"),
            (&[&[(0, u64::MAX)]], "0+21"),
            (&[&[(len, 10), (u64::MAX, 1)]], ""),
        ] {
            let ranges = |group: &&[(u64, u64)]| {
                group.iter().map(|(offset, len)| ByteRange::new(*offset, *len)).collect::<Vec<_>>()
            };
            let launch = LaunchPieces::of(&groups.iter().map(ranges).collect::<Vec<_>>(), len);
            assert_eq!(launch.to_string(), expected);
            assert_eq!(LaunchPieces::parse(expected, len), launch);
        }
    }

    #[test]
    fn nonsense_is_bounded_and_left_out() {
        let len = u64::MAX / 2;
        for (text, expected) in [
            ("x", 0),
            ("1,,2", PIECE_BYTES),
            ("18446744073709551615+18446744073709551615", 0),
            ("0+18446744073709551615,7", PIECES_MAX * PIECE_BYTES),
            ("3+0,4", PIECE_BYTES),
            ("-1", 0),
        ] {
            let launch = LaunchPieces::parse(text, len);
            assert_eq!(launch.runs().iter().map(|run| run.len()).sum::<u64>(), expected, "{text}");
        }
    }
}
