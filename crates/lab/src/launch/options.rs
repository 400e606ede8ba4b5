//! What `floe lab launch` is asked to do.

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

/// What is in memory when a command is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Temperature {
    /// A new process, and nothing of the image: it is mounted afresh, its bytes dropped.
    Cold,
    /// A new process, and what an earlier launch left.
    Warm,
    /// A process that lives and is given one more line to work on.
    Hot,
}

/// What to launch, how often, over which variants, beside which load.
#[derive(Clone, Debug)]
pub struct LaunchOptions {
    /// The command; `{mount}` in it stands for the directory of the mounted image, which is also its working directory.
    pub command: Vec<String>,
    /// The variants, the baseline first.
    pub variants: Vec<Variant>,
    /// What is in memory.
    pub temperature: Temperature,
    /// Traced launches of each variant in each block.
    pub launch_count: usize,
    /// Launches of each variant in each block without tracing, to see what tracing costs.
    pub control_count: usize,
    /// Blocks.
    pub block_count: usize,
    /// Load and settings around it.
    pub stage: StageOptions,
    /// Drops all of the machine's caches before each cold launch, not only the image.
    pub drop_all_caches: bool,
    /// How to measure; the best that works if `None`.
    pub tier: Option<Tier>,
    /// A launch that takes longer is ended, and ends the run.
    pub launch_time_max: Duration,
    /// Where programs are.
    pub programs: Programs,
    /// For hot launches: the line that is written to the command's standard input.
    pub hot_line: String,
    /// The published comparison that the variants are of, if they are, and whether over two images.
    pub comparison: Option<(Comparison, bool)>,
    /// Where to write traces for Perfetto: one for each variant.
    pub trace_directory: Option<PathBuf>,
}

impl LaunchOptions {
    /// Cold launches of `command` over `variants` with the defaults: 3 blocks of 50.
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
            "no launches asked for"
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
