//! The pages that a recorded launch reads.

use std::collections::{BTreeMap, HashMap};

use floe_image::ByteRange;
use floe_mkfs::Profile;

/// The size of a page in bytes.
pub(super) const PAGE_BYTES: u64 = 4 << 10;

/// The maximum length in pages of a gap between recorded pages of a file that counts as recorded. Two launches differ in a few
/// pages, most of them close to recorded ones. For each missing page, the kernel's readahead requests all gaps around it,
/// although the launch needs few of their bytes.
const GAP_PAGES_MAX: u64 = 3;

/// The pages that a recorded launch reads, by file.
pub struct Footprint<'profile> {
    /// For each path, the runs of pages: the first page of each, and the page behind its last.
    runs: HashMap<&'profile [u8], BTreeMap<u64, u64>>,
}

impl<'profile> Footprint<'profile> {
    /// The pages of a profile.
    pub fn of(profile: &'profile Profile) -> Self {
        let mut ranges: HashMap<&[u8], Vec<(u64, u64)>> = HashMap::new();
        for recorded in profile.ranges() {
            let range = recorded.range;
            let pages = (range.offset() / PAGE_BYTES, range.end().div_ceil(PAGE_BYTES));
            ranges.entry(&recorded.path).or_default().push(pages);
        }
        let runs_of = |mut ranges: Vec<(u64, u64)>| {
            ranges.sort_unstable();
            let mut runs = BTreeMap::new();
            let mut last: Option<(u64, u64)> = None;
            for (start, end) in ranges {
                let run = match last {
                    Some((first, last_end)) if start <= last_end.saturating_add(GAP_PAGES_MAX) => {
                        (first, end.max(last_end))
                    }
                    _ => (start, end),
                };
                runs.insert(run.0, run.1);
                last = Some(run);
            }
            runs
        };
        Self { runs: ranges.into_iter().map(|(path, ranges)| (path, runs_of(ranges))).collect() }
    }

    /// A recorded range, grown to whole pages and by the short gaps on both sides.
    pub fn grown(&self, path: &[u8], range: ByteRange) -> ByteRange {
        let (first, end) = (range.offset() / PAGE_BYTES, range.end().div_ceil(PAGE_BYTES));
        let run = self.runs.get(path).and_then(|runs| runs.range(..=first).next_back());
        let (run_first, run_end) = run.map_or((first, end), |(run_first, run_end)| (*run_first, *run_end));
        let grown_first = first.saturating_sub(GAP_PAGES_MAX).max(run_first).min(first);
        let grown_end = end.saturating_add(GAP_PAGES_MAX).min(run_end).max(end);
        ByteRange::between(grown_first.saturating_mul(PAGE_BYTES), grown_end.saturating_mul(PAGE_BYTES))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_grow_by_short_gaps_alone() {
        let text = "# floe profile 2\n4096 100 /a\n20480 4096 /a\n0 1 /b\n40960 4096 /a\n";
        let profile = Profile::read(text.as_bytes()).expect("a profile");
        let footprint = Footprint::of(&profile);
        for (path, range, grown) in [
            ("/a", (1, 2), (1, 5)),
            ("/a", (5, 6), (2, 6)),
            ("/a", (10, 11), (10, 11)),
            ("/b", (0, 1), (0, 1)),
            ("/c", (7, 9), (7, 9)),
        ] {
            let bytes = |(start, end): (u64, u64)| ByteRange::between(start * PAGE_BYTES, end * PAGE_BYTES);
            let inner = ByteRange::new(bytes(range).offset() + 1, bytes(range).len() - 2);
            assert_eq!(footprint.grown(path.as_bytes(), inner), bytes(grown), "{path} {range:?}");
        }
        let huge = ByteRange::new(u64::MAX - 1, 1);
        assert!(footprint.grown(b"/a", huge).offset() <= huge.offset());
    }
}
