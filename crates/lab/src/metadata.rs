//! `floe lab metadata`: parallel walks of a tree, by reader and number of walkers.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::interrupt_sys::Interrupt;
use crate::launch::{
    Account, CapturedStderr, Extras, MetadataAccount, Mounted, Programs, Reader, Variant, forget_image,
};
use crate::process_sys::die_with_parent;
use crate::report::{Page, Series, Table, line_plot, number, percent};
use crate::stage::{Stage, StageOptions, Surroundings};
use crate::statistics::{Summary, difference_percent};
use crate::{Error, Result};

/// The time limit of each round of walks.
const WALK_TIME_MAX: Duration = Duration::from_secs(120);
/// The published result: walkers and milliseconds. Without contention, twice the walkers would take twice the time.
const PUBLISHED: [(usize, f64); 2] = [(8, 1000.0), (16, 13_000.0)];
/// The explanation below the cache table.
const RELEASES: &str =
    "release: a thread releases a block that it made, waited for or found; wakeups: threads woken by releases";
/// The maximum number of walkers.
const WALKERS_MAX: usize = 512;

/// The parameters of the measurement.
#[derive(Clone, Debug)]
pub struct MetadataOptions {
    /// The variants, starting with the baseline.
    pub variants: Vec<Variant>,
    /// The numbers of walkers.
    pub walker_counts: Vec<usize>,
    /// Rounds for each variant and number of walkers.
    pub round_count: usize,
    /// The locations of programs.
    pub programs: Programs,
    /// Load and machine settings.
    pub stage: StageOptions,
}

impl MetadataOptions {
    /// Defaults: 1, 2, 4, 8 and 16 walkers, five rounds.
    pub fn new(variants: Vec<Variant>) -> Self {
        let walker_counts = vec![1, 2, 4, 8, 16];
        let (programs, stage) = (Programs::default(), StageOptions::default());
        Self { variants, walker_counts, round_count: 5, programs, stage }
    }
}

/// The results.
#[derive(Clone, Debug, Serialize)]
pub struct MetadataReport {
    /// The names of the variants.
    pub variants: Vec<String>,
    /// The numbers of walkers.
    pub walker_counts: Vec<usize>,
    /// All walks.
    pub walks: Vec<Walk>,
    /// The conditions of the measurement.
    pub surroundings: Surroundings,
}

/// A parallel walk: all walkers visit the whole tree.
#[derive(Clone, Debug, Serialize)]
pub struct Walk {
    /// The index of the variant.
    pub variant: usize,
    /// The number of walkers.
    pub walker_count: usize,
    /// From the first walker's start to the last walker's end, in nanoseconds.
    pub wall_ns: u64,
    /// Floe's statistics, if Floe read the image.
    pub account: Option<Account>,
}

/// Mounts each variant afresh and walks it with `find`, as in the published report.
pub fn run(options: &MetadataOptions, interrupt: &Interrupt) -> Result<MetadataReport> {
    let is_right = options.walker_counts.iter().all(|count| (1..=WALKERS_MAX).contains(count));
    if options.variants.is_empty() || !is_right || options.walker_counts.is_empty() || options.round_count == 0 {
        return Err(Error::new(format!("use at least one variant, one round, and 1 to {WALKERS_MAX} walkers")));
    }
    std::thread::scope(|scope| {
        scope.spawn(|| run_here(options, interrupt)).join().map_err(|_| Error::new("the run panicked"))?
    })
}

fn run_here(options: &MetadataOptions, interrupt: &Interrupt) -> Result<MetadataReport> {
    let mut stage = Stage::new(&options.stage, interrupt)?;
    let mut walks = Vec::new();
    'rounds: for round in 0..options.round_count {
        for &walker_count in &options.walker_counts {
            let count = options.variants.len();
            for place in 0..count {
                let index = if round % 2 == 0 { place } else { count - 1 - place };
                let variant = &options.variants[index];
                if variant.reader != Reader::Directory {
                    forget_image(&variant.image)?;
                }
                let extras = Extras { wants_account: true, decode_marks: None };
                let mounted = stage.mount_points.mount(variant, index, &options.programs, &stage.load, &extras)?;
                let walked = walk(&mounted, walker_count, interrupt);
                let walked = walked.map_err(|error| Error::new(format!("{}: {error}", variant.name)))?;
                let Some(wall_ns) = walked else {
                    drop(mounted);
                    stage.note("ended early");
                    break 'rounds;
                };
                let account = mounted.end()?;
                walks.push(Walk { variant: index, walker_count, wall_ns, account });
            }
        }
    }
    Ok(MetadataReport {
        variants: options.variants.iter().map(|variant| variant.name.clone()).collect(),
        walker_counts: options.walker_counts.clone(),
        walks,
        surroundings: stage.end(),
    })
}

/// Returns `None` if the run was interrupted.
fn walk(mounted: &Mounted, walker_count: usize, interrupt: &Interrupt) -> Result<Option<u64>> {
    let said = CapturedStderr::new()?;
    let begin = Instant::now();
    let mut walkers = Vec::new();
    for _ in 0..walker_count {
        let mut find = Command::new("find");
        find.arg(mounted.path()).arg("-print").stdin(Stdio::null()).stdout(Stdio::null()).stderr(said.writer()?);
        let find = die_with_parent(&mut find, rustix::process::Signal::KILL).spawn();
        walkers.push(find.map_err(|error| Error::io("cannot run find", error))?);
    }
    let mut problem = None;
    let mut is_interrupted = false;
    for walker in &mut walkers {
        loop {
            match walker.try_wait() {
                Ok(Some(status)) if status.success() => break,
                Ok(Some(status)) => {
                    let said = said.last_line();
                    problem = Some(Error::new(format!("find failed ({status}): {said}")));
                    break;
                }
                Ok(None) if interrupt.is_requested() || begin.elapsed() > WALK_TIME_MAX => {
                    is_interrupted |= interrupt.is_requested();
                    problem = Some(Error::new("the walkers took too long"));
                    let _ = walker.kill();
                    let _ = walker.wait();
                    break;
                }
                Ok(None) => std::thread::sleep(Duration::from_micros(200)),
                Err(error) => return Err(Error::io("cannot wait for find", error)),
            }
        }
    }
    let wall_ns = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
    match problem {
        _ if is_interrupted => Ok(None),
        Some(problem) => Err(problem),
        None => Ok(Some(wall_ns)),
    }
}

impl MetadataReport {
    /// The duration of each walk of a variant with this many walkers, in milliseconds.
    fn walls_ms(&self, variant: usize, walker_count: usize) -> Vec<f64> {
        let walks = self.walks.iter().filter(|walk| walk.variant == variant && walk.walker_count == walker_count);
        walks.map(|walk| walk.wall_ns as f64 / 1e6).collect()
    }

    /// A row for each number of walkers.
    pub fn table(&self) -> Table {
        let mut head = vec!["walkers (ms, median of the rounds)".to_owned()];
        for (index, name) in self.variants.iter().enumerate() {
            head.push(name.clone());
            if index > 0 {
                head.push("diff".to_owned());
            }
        }
        head.push("published: kernel SquashFS, 8 cached blocks".to_owned());
        let mut table = Table::new(head);
        for &walker_count in &self.walker_counts {
            let mut row = vec![walker_count.to_string()];
            let medians: Vec<f64> = (0..self.variants.len())
                .map(|variant| Summary::new(&self.walls_ms(variant, walker_count)).median)
                .collect();
            for (index, median) in medians.iter().enumerate() {
                row.push(number(*median));
                if index > 0 {
                    row.push(difference_percent(medians[0], *median).map_or(String::new(), percent));
                }
            }
            let published = PUBLISHED.iter().find(|(count, _)| *count == walker_count);
            row.push(published.map_or("—".to_owned(), |(_, wall_ms)| number(*wall_ms)));
            table.row(row);
        }
        let mut growth = |from: usize, to: usize| {
            if !self.walker_counts.contains(&from) || !self.walker_counts.contains(&to) {
                return;
            }
            let mut row = vec![format!("from {from} to {to}")];
            for variant in 0..self.variants.len() {
                let median = |count| Summary::new(&self.walls_ms(variant, count)).median;
                row.push(format!("× {}", number(median(to) / median(from))));
                if variant > 0 {
                    row.push(String::new());
                }
            }
            row.push("× 13".to_owned());
            table.row(row);
        };
        growth(PUBLISHED[0].0, PUBLISHED[1].0);
        table
    }

    /// The counts of the metadata caches; `None` if Floe did not report them.
    fn cache_table(&self) -> Option<Table> {
        let mut table = Table::new(["metadata cache", "walkers", "misses", "waits", "wakeups", "wakeups per release"]);
        for (variant, name) in self.variants.iter().enumerate() {
            for &walker_count in &self.walker_counts {
                let of_row =
                    self.walks.iter().filter(|walk| walk.variant == variant && walk.walker_count == walker_count);
                let accounts: Vec<_> = of_row.filter_map(|walk| Some(walk.account.as_ref()?.metadata_cache)).collect();
                let mean = |value: fn(&MetadataAccount) -> u64| {
                    accounts.iter().map(value).sum::<u64>() as f64 / accounts.len() as f64
                };
                if accounts.is_empty() {
                    continue;
                }
                let (wakes, releases) = (mean(|account| account.wakes), mean(|account| account.releases));
                table.row([
                    name.clone(),
                    walker_count.to_string(),
                    number(mean(|account| account.misses)),
                    number(mean(|account| account.joins)),
                    number(wakes),
                    if releases > 0.0 { format!("{:.4}", wakes / releases) } else { "—".to_owned() },
                ]);
            }
        }
        (table.rows().len() > 1).then_some(table)
    }

    /// The whole report as text.
    pub fn text(&self) -> String {
        let caches = self.cache_table().map_or(String::new(), |table| format!("{table}\n{RELEASES}\n\n"));
        format!(
            "parallel walks of a cold tree; {}\n\n{}\n\n{caches}{}\n",
            self.surroundings.load_text(),
            self.table(),
            self.surroundings.lines().join("\n"),
        )
    }

    /// The report as a self-contained page.
    pub fn page(&self) -> String {
        let mut page =
            Page::new("Parallel walks", &format!("find over a cold tree; {}", self.surroundings.load_text()));
        page.table(&self.table());
        if let Some(table) = self.cache_table() {
            page.table(&table);
            page.paragraph(RELEASES);
        }
        let places: Vec<f64> = self.walker_counts.iter().map(|&count| count as f64).collect();
        let named = self.variants.iter().enumerate();
        let series: Vec<Series> = named
            .map(|(colour, name)| {
                let median = |count: &usize| Summary::new(&self.walls_ms(colour, *count)).median;
                Series { name: name.clone(), values: self.walker_counts.iter().map(median).collect(), colour }
            })
            .collect();
        page.figure(
            "Median of the rounds; ideally the time grows in proportion to the number of walkers.",
            &line_plot(&places, &series, "walkers", "ms"),
        );
        page.lines(&self.surroundings.lines());
        page.finish()
    }
}
