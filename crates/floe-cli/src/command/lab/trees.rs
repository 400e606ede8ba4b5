//! `floe lab metadata` and `floe lab read`: measure walks and reads of whole trees.

use floe_lab::{
    Interrupt,
    metadata::{self, MetadataOptions},
    read::{self, ReadOptions},
};

use super::{Outputs, end, failed, size, surroundings};
use crate::fail::Fail;

/// Measure parallel walks of a cold tree
#[derive(clap::Args)]
pub(super) struct MetadataArguments {
    #[command(flatten)]
    surroundings: surroundings::Surroundings,
    /// The numbers of walkers
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,2,4,8,16")]
    walkers: Vec<usize>,
    /// Rounds
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: usize,
    /// Compare designs of the metadata cache instead of --variant: the kernel's eight blocks under one lock, Floe's,
    /// and the kernel itself
    #[arg(long)]
    compare_caches: bool,
    #[command(flatten)]
    outputs: Outputs,
}

/// Measure reads of a whole cold tree, and random reads of its files
#[derive(clap::Args)]
pub(super) struct ReadArguments {
    #[command(flatten)]
    surroundings: surroundings::Surroundings,
    /// Rounds
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: usize,
    /// Random reads in each round
    #[arg(long, value_name = "N", default_value_t = 1000)]
    random: usize,
    /// The size of a random read, in bytes
    #[arg(long, value_name = "SIZE", default_value = "4K", value_parser = size)]
    random_size: u64,
    #[command(flatten)]
    outputs: Outputs,
}

/// Runs `floe lab metadata`.
///
/// # Errors
/// An image cannot be mounted or walked, or a result cannot be written.
pub(super) fn metadata(arguments: MetadataArguments, interrupt: &Interrupt) -> Result<u8, Fail> {
    let caches = ["single-lock=floe:metadata-cache=single-lock:8", "floe", "kernel"];
    // Only root can mount with the kernel for comparison.
    let shown = if rustix::process::geteuid().is_root() { 3 } else { 2 };
    let preset = if arguments.compare_caches { &caches[..shown] } else { &[] };
    let demo = arguments.surroundings.demo_image()?;
    let mut options = MetadataOptions::new(arguments.surroundings.variants(demo.as_ref(), preset)?);
    options.walker_counts = arguments.walkers;
    options.round_count = arguments.rounds;
    options.stage = arguments.surroundings.stage(None)?;
    options.programs = arguments.surroundings.programs()?;
    let outputs = arguments.outputs.open()?;
    let report = metadata::run(&options, interrupt).map_err(failed)?;
    outputs.write(&report.text(), || report.page(), &report)?;
    Ok(end(interrupt))
}

/// Runs `floe lab read`.
///
/// # Errors
/// An image cannot be mounted or read, or a result cannot be written.
pub(super) fn read(arguments: ReadArguments, interrupt: &Interrupt) -> Result<u8, Fail> {
    let demo = arguments.surroundings.demo_image()?;
    let mut options = ReadOptions::new(arguments.surroundings.variants(demo.as_ref(), &[])?);
    options.round_count = arguments.rounds;
    options.random_count = arguments.random;
    options.random_bytes =
        usize::try_from(arguments.random_size).map_err(|_| Fail::usage("--random-size is too large"))?;
    options.stage = arguments.surroundings.stage(None)?;
    options.programs = arguments.surroundings.programs()?;
    let outputs = arguments.outputs.open()?;
    let report = read::run(&options, interrupt).map_err(failed)?;
    outputs.write(&report.text(), || report.page(), &report)?;
    Ok(end(interrupt))
}
