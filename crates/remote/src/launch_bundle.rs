//! The bytes of an image that a launch reads, as a blob of their own.

use std::{collections::BTreeSet, fs::File, io, os::unix::fs::FileExt};

use base64::{Engine, prelude::BASE64_STANDARD};
use floe_image::ByteRange;
use floe_remote_cache::{Digest, DigestTable, ObjectKey, SECTION_BYTES, Trust};

/// The unit of runs, in bytes.
const BLOCK_BYTES: u64 = 4096;

/// The maximum size of a bundle in bytes. A larger launch is limited by its processing rather than by round trips.
const BUNDLE_BYTES_MAX: u64 = 64 << 20;

/// The number of blocks that are sorted by their places. A replay stores about as many bytes at a time.
const WINDOW_BLOCKS: usize = (1 << 20) / BLOCK_BYTES as usize;

/// The maximum size of the list of runs as text, in bytes. Runs are joined until their list is short enough.
const RUNS_TEXT_BYTES_MAX: usize = 24 << 10;

/// The maximum size of the digest table as text, in bytes.
const TABLE_TEXT_BYTES_MAX: usize = DigestTable::bytes_for(BUNDLE_BYTES_MAX) as usize * 4 / 3 + 4;

/// The media type of a bundle in a registry.
pub(crate) const BUNDLE_MEDIA_TYPE: &str = "application/vnd.floe.launch-bundle.v1";

/// Describes a launch bundle: the blob that contains the blocks of an image that a launch reads, one after the other, in the
/// order in which they are needed, metadata first. Blocks that a slightly different launch reads follow.
///
/// The description is in annotations of the layer. The manifest therefore pins the place of each byte and, by a digest for
/// each 256 KiB of the bundle, its value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LaunchBundle {
    digest: Digest,
    table: DigestTable,
    /// The list of runs, such as `0+4,708;12+30`: the first block of each run, and the number of blocks if it has several.
    /// The runs before the semicolon are needed; without a semicolon, all are.
    runs_text: String,
    /// The number of bytes that are needed, which come first.
    needed_len: u64,
    /// The runs by their place in the image.
    runs: Vec<Run>,
}

/// A part of the image that is in the bundle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    pub(crate) image: ByteRange,
    /// The place of its first byte in the bundle.
    place: u64,
}

/// The annotations of a layer that describe its bundle.
#[derive(Clone, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct BundleText {
    /// The digest of the blob.
    pub(crate) digest: String,
    /// The runs.
    pub(crate) runs: String,
    /// The digest table of the blob, in base64.
    pub(crate) table: String,
}

/// A part of a read, which is either in the bundle or not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Part {
    pub(crate) len: usize,
    /// The place in the bundle.
    pub(crate) place: Option<u64>,
}

impl LaunchBundle {
    /// The bundle of these ranges of the image in `file`, and its bytes; `None` if there are none, or too many. The first
    /// group of ranges is needed.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn of(groups: &[Vec<ByteRange>], file: &File) -> io::Result<Option<(Self, Vec<u8>)>> {
        let image_len = file.metadata()?.len();
        let mut groups = groups_of(groups, image_len);
        let mut gap_bytes = 0;
        // If the list is too long, longer runs replace the order of use.
        while text_of(&groups).len() > RUNS_TEXT_BYTES_MAX {
            let longer: Vec<_> = groups.into_iter().map(|runs| joined(runs, gap_bytes)).collect();
            groups = groups_of(&longer, image_len);
            gap_bytes = (gap_bytes * 2).max(BLOCK_BYTES);
        }
        let runs = groups.concat();
        let len: u64 = runs.iter().map(|run| run.len()).sum();
        if len == 0 || len > BUNDLE_BYTES_MAX {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        for run in &runs {
            let start = bytes.len();
            bytes.resize(start + usize::try_from(run.len()).unwrap_or(0), 0);
            file.read_exact_at(&mut bytes[start..], run.offset())?;
        }
        let table = DigestTable::of(&mut &*bytes)?;
        let text = BundleText {
            digest: format!("sha256:{}", Digest::of(&bytes)),
            runs: text_of(&groups),
            table: BASE64_STANDARD.encode(table.to_bytes()),
        };
        Ok(Self::parse(&text, image_len).map(|bundle| (bundle, bytes)))
    }

    /// Parses the description of a bundle of an image of `image_len` bytes. A bundle is only a shortcut, so an invalid one
    /// counts as none.
    pub(crate) fn parse(text: &BundleText, image_len: u64) -> Option<Self> {
        if text.runs.len() > RUNS_TEXT_BYTES_MAX || text.table.len() > TABLE_TEXT_BYTES_MAX {
            return None;
        }
        let table = BASE64_STANDARD.decode(&text.table).ok()?;
        let table = DigestTable::parse(&table, &Digest::of(&table)).ok()?;
        let (mut runs, needed_len, place) = runs_in(&text.runs, image_len)?;
        runs.sort_by_key(|run| run.image.offset());
        let is_whole = place == table.object_len() && place <= BUNDLE_BYTES_MAX;
        let digest = text.digest.parse().ok().filter(|_| is_whole)?;
        Some(Self { digest, table, runs_text: text.runs.clone(), needed_len: needed_len.unwrap_or(place), runs })
    }

    /// The description, which [`LaunchBundle::parse`] parses.
    pub(crate) fn text(&self) -> BundleText {
        BundleText {
            digest: format!("sha256:{}", self.digest),
            runs: self.runs_text.clone(),
            table: BASE64_STANDARD.encode(self.table.to_bytes()),
        }
    }

    /// The digest of the blob.
    pub(crate) fn digest(&self) -> Digest {
        self.digest
    }

    /// The length of the blob in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.table.object_len()
    }

    /// The number of bytes at the start of the blob that every launch needs.
    pub(crate) fn needed_len(&self) -> u64 {
        self.needed_len
    }

    /// The key of the blob in the cache.
    pub(crate) fn key(&self) -> ObjectKey {
        ObjectKey { trust: Trust::Table(self.table.clone().into()), len: self.len() }
    }

    /// The parts of the image that are in the blob, the needed ones first. Gaps of up to a chunk are filled.
    pub(crate) fn image_ranges(&self) -> Vec<ByteRange> {
        let (needed, rest): (Vec<Run>, Vec<Run>) = self.runs.iter().partition(|run| run.place < self.needed_len);
        let ranges = |runs: Vec<Run>| joined(runs.iter().map(|run| run.image).collect(), SECTION_BYTES);
        [needed, rest].map(ranges).concat()
    }

    /// The longest part of the image at `offset`, of at most `len` bytes, that is wholly in the bundle or not in it at all.
    pub(crate) fn part_at(&self, offset: u64, len: usize) -> Part {
        let after = self.runs.partition_point(|run| run.image.offset() <= offset);
        let before = after.checked_sub(1).and_then(|index| self.runs.get(index));
        let at_most = |end: u64| usize::try_from(end - offset).map_or(len, |rest| rest.min(len));
        match before.filter(|run| offset < run.image.end()) {
            Some(run) => Part { len: at_most(run.image.end()), place: Some(run.place + (offset - run.image.offset())) },
            None => Part { len: self.runs.get(after).map_or(len, |next| at_most(next.image.offset())), place: None },
        }
    }
}

/// The runs in a list, which are disjoint, the number of bytes before the semicolon, if there is one, and the number of all bytes.
pub(crate) fn runs_in(text: &str, image_len: u64) -> Option<(Vec<Run>, Option<u64>, u64)> {
    let (mut runs, mut place, mut needed_len) = (Vec::new(), 0_u64, None);
    for run in text.split_inclusive([',', ';']) {
        let is_last_needed = run.ends_with(';');
        let run = run.trim_end_matches([',', ';']);
        let (first, count) = run.split_once('+').unwrap_or((run, "1"));
        let first = first.parse::<u64>().ok()?.checked_mul(BLOCK_BYTES)?;
        let end = count.parse::<u64>().ok()?.checked_mul(BLOCK_BYTES)?.checked_add(first)?;
        let image = ByteRange::between(first, end.min(image_len));
        if first >= image_len || image.is_empty() {
            return None;
        }
        runs.push(Run { image, place });
        place = place.checked_add(image.len())?;
        if is_last_needed && needed_len.replace(place).is_some() {
            return None;
        }
    }
    let mut sorted: Vec<ByteRange> = runs.iter().map(|run| run.image).collect();
    sorted.sort_unstable_by_key(|range| range.offset());
    let is_disjoint = sorted.windows(2).all(|pair| pair[0].end() <= pair[1].offset());
    is_disjoint.then_some((runs, needed_len, place))
}

/// The blocks of each group that are in no group before it, as runs, in the order of their first use. The order is that of
/// windows of [`WINDOW_BLOCKS`]: within a window, the runs are sorted by their places, so that there are fewer.
pub(crate) fn groups_of(groups: &[Vec<ByteRange>], image_len: u64) -> Vec<Vec<ByteRange>> {
    let mut seen = BTreeSet::new();
    let runs_of = |ranges: &Vec<ByteRange>| {
        let mut blocks = new_blocks(ranges, image_len, &mut seen);
        blocks.chunks_mut(WINDOW_BLOCKS).for_each(<[u64]>::sort_unstable);
        let mut runs: Vec<ByteRange> = Vec::new();
        for start in blocks.into_iter().map(|block| block * BLOCK_BYTES) {
            let end = (start + BLOCK_BYTES).min(image_len);
            match runs.last_mut() {
                Some(last) if last.end() == start => *last = ByteRange::between(last.offset(), end),
                _ => runs.push(ByteRange::between(start, end)),
            }
        }
        runs
    };
    groups.iter().map(runs_of).collect()
}

/// The blocks of these ranges that are not in `seen`, in the order of their first use. Adds them to `seen`.
fn new_blocks(ranges: &[ByteRange], image_len: u64, seen: &mut BTreeSet<u64>) -> Vec<u64> {
    let mut blocks = Vec::new();
    for range in ranges {
        let range = range.intersection(ByteRange::new(0, image_len));
        if range.is_empty() || seen.len() as u64 * BLOCK_BYTES > BUNDLE_BYTES_MAX {
            continue;
        }
        blocks.extend(
            (range.offset() / BLOCK_BYTES..=(range.end() - 1) / BLOCK_BYTES).filter(|block| seen.insert(*block)),
        );
    }
    blocks
}

/// The runs by their places, with gaps of at most `gap_bytes` filled.
fn joined(mut runs: Vec<ByteRange>, gap_bytes: u64) -> Vec<ByteRange> {
    runs.sort_unstable_by_key(|run| run.offset());
    let mut joined: Vec<ByteRange> = Vec::new();
    for run in runs {
        match joined.last_mut() {
            Some(last) if run.offset() - last.end() <= gap_bytes => {
                *last = ByteRange::between(last.offset(), run.end())
            }
            _ => joined.push(run),
        }
    }
    joined
}

/// The list of the runs of all groups.
pub(crate) fn text_of(groups: &[Vec<ByteRange>]) -> String {
    let run = |run: &ByteRange| match run.len().div_ceil(BLOCK_BYTES) {
        1 => (run.offset() / BLOCK_BYTES).to_string(),
        count => format!("{}+{count}", run.offset() / BLOCK_BYTES),
    };
    let group = |runs: &Vec<ByteRange>| runs.iter().map(run).collect::<Vec<_>>().join(",");
    groups.iter().filter(|runs| !runs.is_empty()).map(group).collect::<Vec<_>>().join(";")
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn image(len: usize) -> (File, Vec<u8>) {
        let bytes = floe_testkit::Random::new(9).noise(len);
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(&bytes).expect("written");
        (file, bytes)
    }

    #[test]
    fn bundles_have_each_needed_block_once_in_the_order_of_use() {
        let (file, image) = image(100 * 4096 + 77);
        let ranges = |group: &[(u64, u64)]| group.iter().map(|(at, len)| ByteRange::new(*at, *len)).collect::<Vec<_>>();
        for (groups, expected, needed) in [
            (
                vec![ranges(&[(0, 1), (4096 * 7, 4097)]), ranges(&[(4096 * 3 + 5, 1), (4096 * 8, 1)])],
                "0,7+2;3",
                3 * 4096,
            ),
            (vec![ranges(&[(4096 * 7, 4097), (0, 1), (4096 * 9, 1)])], "0,7+3", 4 * 4096),
            (vec![ranges(&[(4096 * 100, 1)]), ranges(&[(4095, 2), (u64::MAX, 1)])], "100;0+2", 77),
            (vec![ranges(&[(0, 1)]), ranges(&[(1, 1)])], "0", 4096),
            (vec![ranges(&[(0, u64::MAX)])], "0+101", 100 * 4096 + 77),
        ] {
            let (bundle, bytes) = LaunchBundle::of(&groups, &file).expect("read").expect("a bundle");
            assert_eq!(bundle.text().runs, expected);
            assert_eq!((bundle.len(), bundle.digest()), (bytes.len() as u64, Digest::of(&bytes)));
            assert_eq!(bundle.needed_len(), needed);
            assert_eq!(LaunchBundle::parse(&bundle.text(), image.len() as u64).as_ref(), Some(&bundle));
            // Each byte of the image is at its place in the bundle, or not in it.
            let (mut at, mut found) = (0, 0);
            while at < image.len() {
                let part = bundle.part_at(at as u64, image.len() - at);
                if let Some(place) = part.place {
                    let place = place as usize;
                    assert_eq!(bytes[place..place + part.len], image[at..at + part.len], "{expected}: {at}");
                    let run = ByteRange::new(at as u64, part.len as u64);
                    let ranges = bundle.image_ranges();
                    assert!(ranges.iter().any(|range| range.intersection(run) == run), "{expected}: {ranges:?}");
                    found += part.len;
                }
                assert!(part.len > 0);
                at += part.len;
            }
            assert_eq!(found, bytes.len(), "{expected}");
        }
        assert_eq!(LaunchBundle::of(&[Vec::new()], &file).expect("read"), None);
    }

    #[test]
    fn long_lists_of_runs_are_shortened() {
        let (file, _) = image(80 << 20);
        let ranges: Vec<_> = (0..10_000).rev().map(|index| ByteRange::new(index * 8192, 1)).collect();
        assert_eq!(
            LaunchBundle::of(std::slice::from_ref(&ranges), &file).expect("read"),
            None,
            "joined, it is too large"
        );
        let (bundle, _) = LaunchBundle::of(&[ranges[4000..].to_vec()], &file).expect("read").expect("a bundle");
        assert!(bundle.text().runs.len() < RUNS_TEXT_BYTES_MAX && bundle.part_at(0, 1).place.is_some());
    }

    #[test]
    fn invalid_descriptions_count_as_none() {
        let (file, image) = image(10 * 4096);
        let groups = [vec![ByteRange::new(0, 1), ByteRange::new(4096 * 4, 8000)]];
        let (bundle, _) = LaunchBundle::of(&groups, &file).expect("read").expect("a bundle");
        let sound = bundle.text();
        for runs in [
            "",
            "x",
            "0",
            "0,4",
            "0,4+3",
            "0,4+2,4",
            "4+2,4",
            "0+0,4+2",
            "0,10+2",
            "0,18446744073709551615+2",
            "0,,4+1",
            "0;;4+1",
            "0;4;5",
        ] {
            let text = BundleText { runs: runs.to_owned(), ..sound.clone() };
            assert_eq!(LaunchBundle::parse(&text, image.len() as u64), None, "{runs}");
        }
        for text in [
            BundleText { digest: "sha256:0".to_owned(), ..sound.clone() },
            BundleText { table: "AAAA".to_owned(), ..sound.clone() },
            BundleText { table: "?".to_owned(), ..sound.clone() },
            BundleText { table: "A".repeat(1 << 20), ..sound.clone() },
            BundleText { runs: "0,".repeat(1 << 20), ..sound.clone() },
        ] {
            assert_eq!(LaunchBundle::parse(&text, image.len() as u64), None);
        }
        assert_eq!(LaunchBundle::parse(&sound, 4096), None, "of a longer image");
    }
}
