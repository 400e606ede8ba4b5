//! The options of `floe lab launch`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::Serialize;

use super::comparison::Comparison;
use super::meter::Tier;
use super::variant::{Programs, Variant};
use crate::stage::StageOptions;
use crate::{Error, Result};

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
