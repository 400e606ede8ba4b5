//! `floe lab`: measures start-up, scheduling latency, page allocation, walks and reads on this machine.

mod launch;
mod sched;
mod surroundings;
mod trees;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use floe_lab::Interrupt;
use serde::Serialize;

use crate::{
    fail::{Exit, Fail},
    output::{Output, ReportFile},
};

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
    outputs: Outputs,
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

/// Output files of a measurement, besides the table on standard output.
#[derive(clap::Args)]
struct Outputs {
    /// Write all raw values and the environment as JSON to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a self-contained HTML page with plots to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// The output files, open for writing.
struct OpenOutputs {
    json: Option<ReportFile>,
    html: Option<ReportFile>,
}

impl Outputs {
    /// Opens the files, before the measurement.
    ///
    /// # Errors
    /// A file cannot be written.
    fn open(&self) -> Result<OpenOutputs, Fail> {
        let open = |path: &Option<PathBuf>| path.as_deref().map(ReportFile::open).transpose();
        Ok(OpenOutputs { json: open(&self.json)?, html: open(&self.html)? })
    }
}

impl OpenOutputs {
    /// Writes the requested files, and the text to standard output.
    ///
    /// # Errors
    /// An output cannot be written.
    fn write(self, text: &str, page: impl FnOnce() -> String, report: &impl Serialize) -> Result<(), Fail> {
        if let Some(file) = self.html {
            file.write(page().as_bytes())?;
        }
        if let Some(file) = self.json {
            file.write(&serde_json::to_vec(report).map_err(|error| Fail::failed(error.to_string()))?)?;
        }
        Output::run(|out| out.write_all(text.as_bytes()).map(|()| 0)).map(drop)
    }
}
