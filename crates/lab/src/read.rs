//! `floe lab read`: reads the whole tree, and random offsets of its files, through different readers.

use std::fs::{self, File};
use std::hash::Hasher;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use floe_image::ShownName;
use serde::Serialize;

use crate::error::ErrorContext;
use crate::interrupt_sys::Interrupt;
use crate::launch::{Extras, Programs, Reader, Variant, forget_image};
use crate::report::{Page, Series, Table, number, percent, strip_plot, tail_plot};
use crate::stage::{Stage, StageOptions, Surroundings};
use crate::statistics::{Interval, Summary, difference_percent};
use crate::{Error, Result};

/// The read size for whole files.
const PIECE_BYTES: usize = 128 << 10;
/// The maximum number of files read.
const FILES_MAX: usize = 1 << 20;

/// The parameters of the measurement.
#[derive(Clone, Debug)]
pub struct ReadOptions {
    /// The variants, starting with the baseline.
    pub variants: Vec<Variant>,
    /// Rounds for each variant.
    pub round_count: usize,
    /// Random reads in each round.
    pub random_count: usize,
    /// The size of a random read in bytes.
    pub random_bytes: usize,
    /// The locations of programs.
    pub programs: Programs,
    /// Load and machine settings.
    pub stage: StageOptions,
}

impl ReadOptions {
    /// Defaults: five rounds, each with the whole tree and 1,000 random reads of 4 KiB.
    pub fn new(variants: Vec<Variant>) -> Self {
        let (programs, stage) = (Programs::default(), StageOptions::default());
        Self { variants, round_count: 5, random_count: 1000, random_bytes: 4096, programs, stage }
    }
}

/// The results.
#[derive(Clone, Debug, Serialize)]
pub struct ReadReport {
    /// The names of the variants.
    pub variants: Vec<String>,
    /// Each round of each variant.
    pub rounds: Vec<ReadRound>,
    /// The conditions of the measurement.
    pub surroundings: Surroundings,
}

/// One round of one variant.
#[derive(Clone, Debug, Serialize)]
pub struct ReadRound {
    /// The index of the variant.
    pub variant: usize,
    /// The number of files read.
    pub file_count: usize,
    /// The number of bytes read.
    pub byte_count: u64,
    /// The time for the whole tree, cold, in nanoseconds.
    pub tree_ns: u64,
    /// The time of each random read, starting cold again, in nanoseconds.
    pub random_ns: Vec<u64>,
    /// A hash of the data read; equal for all variants of one tree.
    pub content_hash: u64,
}

/// Mounts each variant afresh and reads it. Variants whose images hold the same tree must return the same bytes.
pub fn run(options: &ReadOptions, interrupt: &Interrupt) -> Result<ReadReport> {
    if options.variants.is_empty() || options.round_count == 0 || options.random_bytes == 0 {
        return Err(Error::new("use at least one variant, one round and a read size"));
    }
    std::thread::scope(|scope| {
        scope.spawn(|| run_here(options, interrupt)).join().map_err(|_| Error::new("the run panicked"))?
    })
}

fn run_here(options: &ReadOptions, interrupt: &Interrupt) -> Result<ReadReport> {
    let mut stage = Stage::new(&options.stage, interrupt)?;
    let mut rounds: Vec<ReadRound> = Vec::new();
    'rounds: for round in 0..options.round_count {
        let count = options.variants.len();
        for place in 0..count {
            let index = if round % 2 == 0 { place } else { count - 1 - place };
            let Some(result) = read_round(options, index, round, &stage, interrupt)? else {
                stage.note("ended early");
                break 'rounds;
            };
            rounds.push(result);
        }
    }
    let hashes: Vec<u64> = rounds.iter().map(|round| round.content_hash).collect();
    if hashes.windows(2).any(|pair| pair[0] != pair[1]) {
        stage.note("the variants returned different bytes: the trees differ, or a reader is wrong");
    }
    let variants = options.variants.iter().map(|variant| variant.name.clone()).collect();
    Ok(ReadReport { variants, rounds, surroundings: stage.end() })
}

/// Returns `None` if the run was interrupted.
fn read_round(
    options: &ReadOptions,
    index: usize,
    round: usize,
    stage: &Stage,
    interrupt: &Interrupt,
) -> Result<Option<ReadRound>> {
    let variant = &options.variants[index];
    let mount = || {
        if variant.reader != Reader::Directory {
            forget_image(&variant.image)?;
        }
        stage.mount_points.mount(variant, index, &options.programs, &stage.load, &Extras::default())
    };
    let mounted = mount()?;
    let begin = Instant::now();
    let Some(tree) = read_tree(mounted.path(), interrupt)? else { return Ok(None) };
    let tree_ns = nanoseconds(begin);
    drop(mounted);
    let mounted = mount()?;
    // The same offsets for each variant, different ones for each round.
    let mut random = fastrand::Rng::with_seed(round as u64);
    let mut random_ns = Vec::with_capacity(options.random_count);
    let mut buffer = vec![0; options.random_bytes];
    let files: Vec<&(PathBuf, u64)> = tree.files.iter().filter(|(_, size)| *size > 0).collect();
    for _ in 0..if files.is_empty() { 0 } else { options.random_count } {
        if interrupt.is_requested() {
            return Ok(None);
        }
        let (path, size) = files[random.usize(..files.len())];
        let offset = random.u64(..*size) / 4096 * 4096;
        let path = mounted.path().join(path);
        let begin = Instant::now();
        let read = File::open(&path).and_then(|file| file.read_at(&mut buffer, offset));
        random_ns.push(nanoseconds(begin));
        read.context(|| format!("{}: cannot read {}", variant.name, path.shown()))?;
    }
    Ok(Some(ReadRound {
        variant: index,
        file_count: tree.files.len(),
        byte_count: tree.files.iter().map(|(_, size)| size).sum(),
        tree_ns,
        random_ns,
        content_hash: tree.content_hash,
    }))
}

/// The files of a tree, by their paths within it, and their sizes.
struct Tree {
    files: Vec<(PathBuf, u64)>,
    content_hash: u64,
}

/// Reads every file in the order of names; `None` if the run was interrupted.
fn read_tree(root: &Path, interrupt: &Interrupt) -> Result<Option<Tree>> {
    let mut tree = Tree { files: Vec::new(), content_hash: 0 };
    let mut hasher = std::hash::DefaultHasher::new();
    let mut piece = vec![0; PIECE_BYTES];
    let mut directories = vec![PathBuf::new()];
    while let Some(directory) = directories.pop() {
        let path = root.join(&directory);
        let mut entries = fs::read_dir(&path)
            .and_then(Iterator::collect::<std::io::Result<Vec<_>>>)
            .context(|| format!("cannot list {}", path.shown()))?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let path = directory.join(entry.file_name());
            let kind = entry.file_type().context(|| format!("cannot stat {}", path.shown()))?;
            if kind.is_dir() {
                directories.push(path);
            } else if kind.is_file() && tree.files.len() < FILES_MAX {
                if interrupt.is_requested() {
                    return Ok(None);
                }
                let context = || format!("cannot read {}", path.shown());
                let mut file = File::open(entry.path()).context(context)?;
                let mut size = 0;
                loop {
                    let length = file.read(&mut piece).context(context)?;
                    if length == 0 {
                        break;
                    }
                    hash_ends(&mut hasher, &piece[..length]);
                    size += length as u64;
                }
                tree.files.push((path, size));
            }
        }
    }
    tree.content_hash = hasher.finish();
    Ok(Some(tree))
}

/// Hashes only the length and 64 bytes at each end of a piece, so that hashing does not affect the measurement.
fn hash_ends(hasher: &mut impl Hasher, piece: &[u8]) {
    let end = piece.len().min(64);
    hasher.write(&piece[..end]);
    hasher.write(&piece[piece.len() - end..]);
    hasher.write_usize(piece.len());
}

fn nanoseconds(begin: Instant) -> u64 {
    u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

impl ReadReport {
    fn speeds(&self, variant: usize) -> Vec<f64> {
        let rounds = self.rounds.iter().filter(|round| round.variant == variant);
        rounds.map(|round| round.byte_count as f64 / (1 << 20) as f64 / (round.tree_ns.max(1) as f64 / 1e9)).collect()
    }

    fn latencies(&self, variant: usize) -> Vec<f64> {
        let rounds = self.rounds.iter().filter(|round| round.variant == variant);
        rounds.flat_map(|round| &round.random_ns).map(|&ns| ns as f64 / 1000.0).collect()
    }

    /// A row for each variant.
    pub fn table(&self) -> Table {
        let mut table = Table::new([
            "",
            "whole tree (MiB/s)",
            "diff",
            "95 % of the difference",
            "random read p50 (µs)",
            "p90",
            "p99",
            "maximum",
            "average",
            "diff",
        ]);
        let (first_speeds, first_latencies) = (self.speeds(0), self.latencies(0));
        for (index, name) in self.variants.iter().enumerate() {
            let (speeds, latencies) = (self.speeds(index), self.latencies(index));
            let (speed, latency) = (Summary::new(&speeds), Summary::new(&latencies));
            let beside = |first: &[f64], summary: &Summary| {
                let difference = difference_percent(Summary::new(first).average, summary.average);
                difference.filter(|_| index > 0).map_or(String::new(), percent)
            };
            let interval = Interval::of_difference_percent(&first_speeds, &speeds).filter(|_| index > 0);
            table.row([
                name.clone(),
                number(speed.average),
                beside(&first_speeds, &speed),
                interval.map_or(String::new(), |i| format!("{}…{}", percent(i.low), percent(i.high))),
                number(latency.median),
                number(latency.p90),
                number(latency.p99),
                number(latency.maximum),
                number(latency.average),
                beside(&first_latencies, &latency),
            ]);
        }
        table
    }

    /// The whole report as text.
    pub fn text(&self) -> String {
        format!("{}\n\n{}\n{}\n", self.title(), self.table(), self.surroundings.lines().join("\n"))
    }

    /// The report as a self-contained page.
    pub fn page(&self) -> String {
        let mut page = Page::new("Reads", &self.title());
        page.table(&self.table());
        let series = |values: &dyn Fn(usize) -> Vec<f64>| -> Vec<Series> {
            let named = self.variants.iter().enumerate();
            named.map(|(colour, name)| Series { name: name.clone(), values: values(colour), colour }).collect()
        };
        let speeds = series(&|variant| self.speeds(variant));
        page.figure("Whole tree, cold: one dot per round.", &strip_plot(&speeds, "MiB/s"));
        let latencies = series(&|variant| self.latencies(variant));
        page.figure("Random reads, cold: cumulative distribution of times.", &tail_plot(&latencies, "µs"));
        page.lines(&self.surroundings.lines());
        page.finish()
    }

    fn title(&self) -> String {
        let tree = self
            .rounds
            .first()
            .map_or(String::new(), |round| format!("{} files, {} MiB; ", round.file_count, round.byte_count >> 20));
        format!("{tree}cold reads; {}", self.surroundings.load_text())
    }
}
