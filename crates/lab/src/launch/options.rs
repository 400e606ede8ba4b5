//! The options of `floe lab launch`, and the named comparisons with the published figures.

use std::{fmt, path::PathBuf, str::FromStr, time::Duration};

use serde::Serialize;

use super::{
    meter::Tier,
    outcome::Metric,
    variant::{Programs, Variant},
};
use crate::{Error, Result, stage::StageOptions};

/// The state of the caches and the process when the command is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Temperature {
    /// A new process, a fresh mount, and nothing of the image in the page cache.
    Cold,
    /// A new process, and the caches of earlier launches.
    Warm,
    /// A running process that gets one more line of input.
    Hot,
}

/// The command, the number of launches, the variants, and the load.
#[derive(Clone, Debug)]
pub struct LaunchOptions {
    /// The command; `{mount}` in it is replaced by the mount point, which is also the working directory.
    pub command: Vec<String>,
    /// The variants, starting with the baseline.
    pub variants: Vec<Variant>,
    /// The state of the caches and the process at a launch.
    pub temperature: Temperature,
    /// Traced launches of each variant in each block.
    pub launch_count: usize,
    /// Launches of each variant in each block without tracing, to determine the cost of tracing.
    pub control_count: usize,
    /// The number of blocks.
    pub block_count: usize,
    /// Load and machine settings.
    pub stage: StageOptions,
    /// Drop all caches of the machine before each cold launch, not only the image.
    pub drop_all_caches: bool,
    /// The method of measuring; the best available one if `None`.
    pub tier: Option<Tier>,
    /// A launch that takes longer is killed and ends the run.
    pub launch_time_max: Duration,
    /// The locations of programs.
    pub programs: Programs,
    /// For hot launches: the line written to the command's standard input.
    pub hot_line: String,
    /// The published comparison that the variants reproduce, if any, and whether it uses two images.
    pub comparison: Option<(Comparison, bool)>,
    /// The directory for Perfetto traces, one per variant.
    pub trace_directory: Option<PathBuf>,
}

impl LaunchOptions {
    /// Cold launches of `command` with `variants` and the defaults: 3 blocks of 50.
    pub fn new(command: Vec<String>, variants: Vec<Variant>) -> Self {
        Self {
            command,
            variants,
            temperature: Temperature::Cold,
            launch_count: 50,
            control_count: 5,
            block_count: 3,
            stage: StageOptions::default(),
            drop_all_caches: false,
            tier: None,
            launch_time_max: Duration::from_secs(60),
            programs: Programs::default(),
            hot_line: String::new(),
            comparison: None,
            trace_directory: None,
        }
    }

    pub(crate) fn check(&self) -> Result<()> {
        let problem = if self.command.is_empty() {
            "no command to launch: put one after --"
        } else if self.variants.is_empty() {
            "no variants to launch"
        } else if self.launch_count + self.control_count == 0 || self.block_count == 0 {
            "no launches requested"
        } else {
            return Ok(());
        };
        Err(Error::new(problem))
    }
}

impl FromStr for Temperature {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "cold" => Ok(Self::Cold),
            "warm" => Ok(Self::Warm),
            "hot" => Ok(Self::Hot),
            _ => Err(Error::new(format!("temperature {text:?}: use cold, warm or hot"))),
        }
    }
}

impl fmt::Display for Temperature {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Cold => "cold",
            Self::Warm => "warm",
            Self::Hot => "hot",
        })
    }
}

/// A comparison by name; most reproduce published ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Comparison {
    /// The workqueue model against per-CPU threads with real-time priority, and against the kernel's own workqueue.
    Workers,
    /// Without and with a page pool.
    Pool,
    /// Sliding windows of two images.
    Windows,
    /// Read-around that waits for pages, no read-around, and read-around that gives up at once.
    ReadAround,
    /// Floe over FUSE, Floe with the kernel's EROFS in front, and the kernel alone.
    Fronts,
}

/// A row of a published table: label, before, after.
pub type PublishedRow = (&'static str, f64, f64);

/// A published table.
#[derive(Clone, Copy, Debug)]
pub struct Published {
    /// The subject and the publication.
    pub source: &'static str,
    /// The column titles.
    pub columns: [&'static str; 2],
    /// The metric.
    pub metric: &'static Metric,
    /// The rows. For workers they are average, median and so on; for the others, averages of several settings.
    pub rows: &'static [PublishedRow],
}

impl Comparison {
    /// The variants, starting with the baseline.
    pub fn variants(self) -> &'static [&'static str] {
        match self {
            Self::Workers => &[
                "shared=floe:workers=shared,priority=normal,sync-decompress=never",
                "per-cpu=floe:workers=per-cpu,priority=fifo,sync-decompress=never",
                "floe",
                "kernel=kernel:loop",
            ],
            Self::Pool => &["no pool=floe:reserved-pages=0", "pool=floe"],
            // With a cache, parts of blocks are decoded into its pages, and no separate window is needed.
            Self::Windows => &["no cache=floe:cache=0,reserved-pages=0"],
            Self::ReadAround => &[
                "wait=floe:reserved-pages=0,readahead-alloc=wait",
                "off=floe:reserved-pages=0,prefetch=rest-of-block+drop-behind,fetch-around=off",
                "best-effort=floe:reserved-pages=0,readahead-alloc=best-effort",
            ],
            Self::Fronts => {
                &["fuse=floe:front=fuse", "front=floe:front=kernel", "kernel", "kernel by loop=kernel:loop"]
            }
        }
    }

    /// The load of the publication, or a suitable one; the default.
    pub fn load(self) -> &'static str {
        match self {
            Self::Workers | Self::Fronts => "cpu=8x90%",
            // With a hog of half the limit, no process of the size of an interpreter survives.
            Self::Pool | Self::Windows | Self::ReadAround => "memory=40M:12M",
        }
    }

    /// For each published row, the indexes of the variants that correspond to its columns. With a second image, each
    /// variant exists twice, once for each image.
    pub fn pairs(self, has_second_image: bool) -> &'static [(usize, usize)] {
        match (self, has_second_image) {
            (Self::Workers | Self::Pool, false) | (Self::Windows, true) => &[(0, 1)],
            (Self::Workers | Self::Pool, true) => &[(0, 2)],
            (Self::Windows, false) | (Self::Fronts, _) => &[],
            (Self::ReadAround, false) => &[(0, 2)],
            (Self::ReadAround, true) => &[(0, 4), (1, 5), (0, 5)],
        }
    }

    /// The metrics that the comparison is about, the published one first.
    pub fn metrics(self) -> &'static [&'static Metric] {
        match self {
            Self::Workers => &[Metric::LATENCY],
            Self::Pool | Self::Windows => &[Metric::PAGES],
            Self::ReadAround => &[Metric::PAGES, Metric::READS],
            Self::Fronts => &[],
        }
    }

    /// The published results, if there are any.
    pub fn published(self) -> Option<Published> {
        Some(match self {
            Self::Fronts => return None,
            Self::Workers => Published {
                source: "Linux commit 3fffb589b9a6: 50 app launches, arm64 Android, Linux 5.10",
                columns: ["workqueue", "kthread_worker"],
                metric: Metric::LATENCY,
                rows: &[
                    ("Average", 15253.0, 2914.0),
                    ("Median", 14001.0, 2912.0),
                    ("Minimum", 3117.0, 1027.0),
                    ("Maximum", 30170.0, 3805.0),
                    ("Standard deviation", 7166.0, 359.0),
                ],
            },
            Self::Pool => Published {
                source: "linux-erofs, January 2024: page allocation in a camera launch among 16 apps, arm64 Android",
                columns: ["w/o page pool", "w/ page pool"],
                metric: Metric::PAGES,
                rows: &[("Average", 3434.0, 21.0)],
            },
            Self::Windows => Published {
                source: "linux-erofs, January 2024: page allocation in a camera launch among 16 apps, arm64 Android",
                columns: ["64k window", "16k window"],
                metric: Metric::PAGES,
                rows: &[("Average", 3364.0, 2079.0)],
            },
            Self::ReadAround => Published {
                source: "linux-erofs, January 2024: page allocation in a camera launch among 16 apps, arm64 Android",
                columns: ["vanilla", "patched"],
                metric: Metric::PAGES,
                rows: &[
                    ("Average, 64k window", 3364.0, 2684.0),
                    ("Average, 16k window", 2079.0, 1610.0),
                    ("64k vanilla to 16k patched", 3364.0, 1610.0),
                ],
            },
        })
    }
}
