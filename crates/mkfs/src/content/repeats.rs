//! Finds data that occurs earlier, in another file or in the same one, at any offset.
//!
//! Content is split into grains, at the same positions wherever equal data occurs; a sequence of equal grains is a repeat. This
//! is known as content-defined chunking, but EROFS uses "chunk" for something else. All repeats are found before compression
//! starts, so that files can be compressed independently.

use std::collections::{BTreeSet, HashMap};

use xxhash_rust::xxh64::xxh64;

use super::file_split::{FileSplits, Repeat};
use crate::{
    error::Result,
    memory::{lengthen, zeros},
    options::Options,
    progress::{Phase, Progress, report},
    tree::content::Content,
    workers,
};

/// The number of bytes that are split into grains at a time.
const SPAN_LEN: u64 = 4 << 20;
/// The comparison size in bytes.
const COMPARE_LEN: usize = 256 << 10;
/// log2 of the average grain length in bytes, for up to [`FINE_BYTES_MAX`] bytes of files. With more data grains are
/// longer, so that the table fits in memory.
const GRAIN_LEN_LOG2: u32 = 12;
const FINE_BYTES_MAX: u64 = 4 << 30;
/// The minimum length of a repeat in bytes, and as a fraction of a pcluster. A pcluster ends at each boundary of a
/// repeat. This leaves half a block empty on average, and the data after the boundary is compressed without the data
/// before it.
const REPEAT_LEN_MIN: u64 = 16 << 10;
const PCLUSTER_PARTS: u64 = 4;
/// Within one file, the codec handles repetitions closer than this many pclusters.
const NEAR_PCLUSTERS: u64 = 4;
/// A cautious estimate of the compression ratio, for the savings of a repeat.
const RATIO_GUESS: u64 = 4;
/// How much longer an index entry is in a file with repeats, in bytes per lcluster.
const INDEX_COST: u64 = 6;

/// Finds the repeats in `files`, given with their tree-order index in the order of storage, and splits the files
/// accordingly for pclusters of this size.
pub(crate) fn find_repeats(
    files: &[(usize, &Content)],
    pcluster_bytes: u32,
    options: &Options,
    progress: &mut dyn Progress,
) -> Result<FileSplits> {
    let pcluster_size = u64::from(pcluster_bytes);
    let repeat_len_min = REPEAT_LEN_MIN.max(pcluster_size / PCLUSTER_PARTS);
    let files: Vec<(usize, &Content)> =
        files.iter().copied().filter(|(_, content)| content.size() >= repeat_len_min).collect();
    let mut finder = Finder {
        repeat_len_min,
        distance_min: pcluster_size * NEAR_PCLUSTERS,
        grains: Vec::new(),
        ends: Vec::new(),
        known: HashMap::new(),
        run: None,
        found: Vec::new(),
    };
    finder.read(&files, options, progress)?;
    let found = confirm(&files, std::mem::take(&mut finder.found), options)?;
    drop(finder);
    let sizes: HashMap<usize, u64> = files.iter().map(|(place, content)| (*place, content.size())).collect();
    let mut splits = FileSplits::new(options.block_size(), repeat_len_min);
    for repeats in found.chunk_by(|left, right| left.0 == right.0) {
        let Some((place, size)) = repeats.first().and_then(|(place, _)| sizes.get_key_value(place)) else { continue };
        let total: u64 = repeats.iter().map(|(_, repeat)| repeat.len).sum();
        if total / RATIO_GUESS > size / options.block_size() * INDEX_COST {
            repeats.iter().for_each(|(_, repeat)| splits.add(*place, *size, *repeat));
        }
    }
    Ok(splits)
}

/// A grain: its offset in its file, and its hash.
#[derive(Clone, Copy)]
struct Seen {
    start: u64,
    hash: u64,
}

/// A sequence of grains that match an earlier sequence.
struct Run {
    /// The repeat so far; its source is the file number, not the tree-order index.
    repeat: Repeat,
    /// The number of the grain expected next.
    next: usize,
    /// The number of the grain at which the source ends.
    end: usize,
}

struct Finder {
    repeat_len_min: u64,
    distance_min: u64,
    grains: Vec<Seen>,
    /// For each file read, the number of the grain after its last one.
    ends: Vec<usize>,
    /// The first grain with each hash.
    known: HashMap<u64, u32>,
    run: Option<Run>,
    /// The repeats found so far, each with the tree-order index of its file.
    found: Vec<(usize, Repeat)>,
}

impl Finder {
    fn read(&mut self, files: &[(usize, &Content)], options: &Options, progress: &mut dyn Progress) -> Result<()> {
        let total: u64 = files.iter().map(|(_, content)| content.size()).sum();
        let cutter = GrainCutter::new(GRAIN_LEN_LOG2 + total.div_ceil(FINE_BYTES_MAX).next_power_of_two().ilog2());
        let mut spans = files.iter().enumerate().flat_map(|(number, (_, content))| {
            let size = content.size();
            (0..size).step_by(SPAN_LEN as usize).map(move |start| (number, *content, start, SPAN_LEN.min(size - start)))
        });
        let next = || {
            let mut bytes = 0;
            let mut job = Vec::new();
            while bytes < SPAN_LEN
                && let Some(span) = spans.next()
            {
                bytes += span.3;
                job.push(span);
            }
            (!job.is_empty()).then_some((job, 2 * SPAN_LEN as usize))
        };
        let worker = || {
            let mut buffer = Vec::new();
            Ok(move |job: Vec<(usize, &Content, u64, u64)>| -> Result<Vec<(usize, u64, Vec<Grain>)>> {
                let cut = job.into_iter().map(|(number, content, start, len)| {
                    buffer.clear();
                    lengthen(&mut buffer, usize::try_from(len).unwrap_or(usize::MAX))?;
                    let open = content.open()?;
                    open.read_at(start, &mut buffer)?;
                    open.check_unchanged()?;
                    Ok((number, start, cutter.cut(&buffer).collect()))
                });
                cut.collect()
            })
        };
        let mut done = 0;
        workers::run(options.jobs, options.memory_len(), worker, next, |spans: Vec<(usize, u64, Vec<Grain>)>| {
            for (number, mut start, grains) in spans {
                if start == 0 {
                    self.begin_file(files, number);
                }
                for grain in grains {
                    self.add(files, number, start, grain);
                    start += grain.len as u64;
                    done += grain.len as u64;
                }
            }
            report(progress, Phase::Compare, done, total)
        })?;
        self.begin_file(files, files.len());
        Ok(())
    }

    /// Begins the file with this number and ends the previous one.
    fn begin_file(&mut self, files: &[(usize, &Content)], number: usize) {
        self.end_run(files, number.saturating_sub(1));
        if number > 0 {
            self.ends.push(self.grains.len());
        }
    }

    fn add(&mut self, files: &[(usize, &Content)], number: usize, start: u64, grain: Grain) {
        let seen = Seen { start, hash: grain.hash };
        let len = grain.len as u64;
        let goes_on = self.run.as_mut().is_some_and(|run| {
            let goes_on = run.next < run.end && self.grains[run.next].hash == grain.hash;
            run.next += 1;
            run.repeat.len += if goes_on { len } else { 0 };
            goes_on
        });
        if !goes_on {
            self.end_run(files, number);
            self.run = self.begin_run(number, seen, grain);
        }
        if grain.is_distinct
            && let Ok(grain_number) = u32::try_from(self.grains.len())
        {
            self.known.entry(grain.hash).or_insert(grain_number);
        }
        self.grains.push(seen);
    }

    fn begin_run(&self, number: usize, seen: Seen, grain: Grain) -> Option<Run> {
        let known = self.known.get(&grain.hash).copied().filter(|_| grain.is_distinct)?;
        let known = usize::try_from(known).ok()?;
        let source = self.ends.partition_point(|end| *end <= known);
        let source_start = self.grains[known].start;
        // Within one file, the source must end before the repeat begins: later data is not stored yet.
        let end = self.ends.get(source).copied().unwrap_or(self.grains.len());
        if source == number && seen.start - source_start < self.distance_min {
            return None;
        }
        let repeat = Repeat { start: seen.start, len: grain.len as u64, source, source_start };
        Some(Run { repeat, next: known + 1, end })
    }

    fn end_run(&mut self, files: &[(usize, &Content)], number: usize) {
        if let Some(run) = self.run.take().filter(|run| run.repeat.len >= self.repeat_len_min) {
            let source = files[run.repeat.source].0;
            self.found.push((files[number].0, Repeat { source, ..run.repeat }));
        }
    }
}

/// Verifies repeats byte by byte, extends them as far as the data matches, and merges contiguous ones.
fn confirm(
    files: &[(usize, &Content)],
    found: Vec<(usize, Repeat)>,
    options: &Options,
) -> Result<Vec<(usize, Repeat)>> {
    let contents: HashMap<usize, &Content> = files.iter().copied().collect();
    let mut cuts: HashMap<usize, BTreeSet<u64>> = HashMap::new();
    for (place, repeat) in &found {
        cuts.entry(repeat.source).or_default().insert(repeat.source_start);
        cuts.entry(*place).or_default().insert(repeat.start);
    }
    let mut jobs = found.iter().filter_map(|(place, repeat)| {
        let (content, source) = (contents.get(place)?, contents.get(&repeat.source)?);
        let next_cut = cuts.get(place).and_then(|cuts| cuts.range(repeat.start + 1..).next());
        let end = next_cut.copied().unwrap_or(u64::MAX).min(content.size());
        let source_end = if repeat.source == *place { repeat.start } else { source.size() };
        let len_max = (end - repeat.start).min(source_end - repeat.source_start);
        Some(((*place, *content, *source, *repeat, len_max), COMPARE_LEN * 2))
    });
    let worker = || {
        let mut buffers = [zeros(COMPARE_LEN)?, zeros(COMPARE_LEN)?];
        Ok(move |(place, content, source, repeat, len_max): (usize, &Content, &Content, Repeat, u64)| {
            let starts = [repeat.start, repeat.source_start];
            Ok((place, Repeat { len: common_len([content, source], starts, len_max, &mut buffers)?, ..repeat }))
        })
    };
    let mut confirmed: Vec<(usize, Repeat)> = Vec::new();
    workers::run(
        options.jobs,
        options.memory_len(),
        worker,
        || jobs.next(),
        |(place, repeat)| {
            match confirmed.last_mut() {
                Some((before_place, before))
                    if *before_place == place
                        && before.source == repeat.source
                        && before.start + before.len == repeat.start
                        && before.source_start + before.len == repeat.source_start =>
                {
                    before.len += repeat.len;
                }
                _ => confirmed.push((place, repeat)),
            }
            Ok(())
        },
    )?;
    Ok(confirmed)
}

/// The length of the common data of two files from these offsets on, up to `len_max`.
fn common_len(contents: [&Content; 2], starts: [u64; 2], len_max: u64, buffers: &mut [Vec<u8>; 2]) -> Result<u64> {
    let opened = [contents[0].open()?, contents[1].open()?];
    let mut common = 0;
    while common < len_max {
        let len = usize::try_from(len_max - common).unwrap_or(usize::MAX).min(COMPARE_LEN);
        for ((open, start), buffer) in opened.iter().zip(starts).zip(buffers.iter_mut()) {
            open.read_at(start + common, &mut buffer[..len])?;
        }
        let [left, right] = &*buffers;
        let same = left[..len].iter().zip(&right[..len]).take_while(|(left, right)| left == right).count();
        common += same as u64;
        if same < len {
            break;
        }
    }
    opened.iter().try_for_each(|open| open.check_unchanged())?;
    Ok(common)
}

/// The window of the rolling hash in bytes: each byte shifts the hash by one bit.
const WINDOW_LEN: usize = 64;
/// The minimum length of a grain is one part in this many of the average.
const MIN_PARTS: usize = 8;
/// The maximum length of a grain is this many times the average.
const MAX_FACTOR: usize = 32;

/// The random number of each byte value for the rolling hash.
const GEAR: [u64; 256] = gear();

/// A run of content between two content-defined boundaries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Grain {
    /// The length in bytes.
    len: usize,
    /// The hash of its bytes.
    hash: u64,
    /// Whether its end is content-defined. Data with a short period has no such boundaries.
    is_distinct: bool,
}

/// Splits content into grains.
#[derive(Clone, Copy, Debug)]
struct GrainCutter {
    len_log2: u32,
}

impl GrainCutter {
    /// Creates a cutter for grains of about `1 << len_log2` bytes; the logarithm is 8 to 24.
    fn new(len_log2: u32) -> Self {
        Self { len_log2: len_log2.clamp(8, 24) }
    }

    /// The grains of `data` in order.
    fn cut<'a>(&self, data: &'a [u8]) -> impl Iterator<Item = Grain> + 'a {
        let usual_len = 1usize << self.len_log2;
        let (min_len, max_len) = (usual_len / MIN_PARTS, usual_len * MAX_FACTOR);
        let end_below = 1u64 << (u64::BITS - self.len_log2);
        let mut rest = data;
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let (before, looked_at) = rest[..rest.len().min(max_len)].split_at(rest.len().min(min_len - 1));
            let window = &before[before.len() - before.len().min(WINDOW_LEN - 1)..];
            let mut rolling = window.iter().fold(0, |rolling, byte| roll(rolling, *byte));
            let end = looked_at.iter().position(|byte| {
                rolling = roll(rolling, *byte);
                rolling < end_below
            });
            let len = end.map_or(before.len() + looked_at.len(), |end| before.len() + end + 1);
            let (grain, after) = rest.split_at(len);
            rest = after;
            Some(Grain { len, hash: xxh64(grain, 0), is_distinct: end.is_some() })
        })
    }
}

const fn roll(rolling: u64, byte: u8) -> u64 {
    (rolling << 1).wrapping_add(GEAR[byte as usize])
}

const fn gear() -> [u64; 256] {
    let mut table = [0; 256];
    let mut index = 0;
    let mut state = 0u64;
    while index < table.len() {
        // SplitMix64, which distributes bits evenly enough.
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        table[index] = mixed ^ (mixed >> 31);
        index += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(len: usize) -> Vec<u8> {
        let mut state = 7u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        (0..len).map(|_| next()).collect()
    }

    #[test]
    fn equal_data_is_cut_at_equal_positions() {
        let data = noise(1 << 20);
        let cutter = GrainCutter::new(11);
        let grains: Vec<Grain> = cutter.cut(&data).collect();
        assert_eq!(grains.iter().map(|grain| grain.len).sum::<usize>(), data.len());
        assert!((1 << 8..1 << 10).contains(&grains.len()), "{}", grains.len());
        for shift in [1, 63, 5000] {
            let shifted: Vec<Grain> = cutter.cut(&data[shift..]).collect();
            let common = shifted.iter().filter(|grain| grains.contains(grain)).count();
            assert!(common + 6 > shifted.len(), "{common} of {} after {shift}", shifted.len());
        }
    }

    #[test]
    fn uniform_data_is_not_distinct() {
        for data in [vec![0; 1 << 20], [1, 2, 3].repeat(1 << 18), Vec::new(), vec![5]] {
            assert!(GrainCutter::new(11).cut(&data).all(|grain| !grain.is_distinct));
        }
    }
}
