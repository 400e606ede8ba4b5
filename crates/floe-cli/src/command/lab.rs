//! `floe lab`: measures start-up, scheduling latency, page allocation, walks and reads on this machine.

mod demo_image;
mod launch;
mod outputs;
mod sched;
mod surroundings;
mod trees;

use clap::{Args, Subcommand};
use floe_lab::Interrupt;

use crate::{exit::Exit, fail::Fail};

/// Measure on this machine: launches, scheduling latency, page allocation, parallel walks, reads
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    measurement: Measurement,
}

#[derive(Subcommand)]
enum Measurement {
    Launch(launch::Arguments),
    Sched(sched::Arguments),
    Alloc(AllocArguments),
    Metadata(trees::MetadataArguments),
    Read(trees::ReadArguments),
}

/// Measure how long page allocation takes, from the system and from a pool, with and without memory pressure
#[derive(Args)]
struct AllocArguments {
    /// The number of pages in one allocation: a decode needs 16 for a window of 64 KiB, 4 for one of 16 KiB
    #[arg(long, value_name = "N", default_value_t = 64)]
    pages: usize,
    /// Rounds
    #[arg(long, value_name = "N", default_value_t = 200)]
    rounds: usize,
    /// The memory limit that causes pressure
    #[arg(long, value_name = "SIZE", default_value = "40M", value_parser = size)]
    limit: u64,
    #[command(flatten)]
    outputs: outputs::Outputs,
}

/// Runs the command.
///
/// # Errors
/// The measurement failed, or a result cannot be written.
pub(crate) fn run(arguments: Arguments) -> Result<u8, Fail> {
    let interrupt = Interrupt::listen();
    match arguments.measurement {
        Measurement::Launch(arguments) => launch::run(arguments, &interrupt),
        Measurement::Sched(arguments) => sched::run(arguments, &interrupt),
        Measurement::Alloc(arguments) => alloc(&arguments, &interrupt),
        Measurement::Metadata(arguments) => trees::metadata(arguments, &interrupt),
        Measurement::Read(arguments) => trees::read(arguments, &interrupt),
    }
}

fn alloc(arguments: &AllocArguments, interrupt: &Interrupt) -> Result<u8, Fail> {
    let options = floe_lab::alloc::AllocOptions {
        page_count: arguments.pages,
        round_count: arguments.rounds,
        limit_bytes: arguments.limit,
        ..floe_lab::alloc::AllocOptions::default()
    };
    let outputs = arguments.outputs.open()?;
    let report = floe_lab::alloc::run(&options, interrupt).map_err(failed)?;
    outputs.write(&report.text(), || report.page(), &report)?;
    Ok(end(interrupt))
}

/// The exit code of a measurement, which the user may have interrupted.
fn end(interrupt: &Interrupt) -> u8 {
    if interrupt.is_requested() { Exit::Interrupted.code() } else { Exit::Done.code() }
}

fn failed(error: floe_lab::Error) -> Fail {
    Fail::failed(error.to_string())
}

fn size(text: &str) -> Result<u64, String> {
    floe_lab::load::parse_size(text).ok_or_else(|| format!("{text:?} is not a size: use a number with K, M or G"))
}
