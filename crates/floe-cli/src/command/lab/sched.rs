//! `floe lab sched`: measures the scheduling latency of running threads.

use std::{
    io::{IsTerminal, stderr},
    time::Duration,
};

use floe_lab::{
    Interrupt,
    sched::{NamePattern, SchedOptions, watch},
};

use super::{Outputs, end, failed};
use crate::fail::Fail;

/// The maximum number of rows in the live display.
const LIVE_ROWS_MAX: usize = 20;

/// Measure the scheduling latency of running threads, selected by name
///
/// On a terminal, updates a live table once a second. Prints a summary at the end, after --seconds or Ctrl-C.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    floe lab sched --thread 'floe-dec/*' --seconds 10\n  \
    floe lab sched --process firefox --html firefox.html\n  \
    floe lab sched --workqueue erofs_worker\n\n\
    In names, * matches any text and ? matches any one character.\n\n\
    Exit codes:\n  \
    0  done\n  \
    1  the measurement failed\n  \
    2  wrong usage\n  \
    130  ended by a signal, after showing the summary")]
pub(super) struct Arguments {
    /// Threads with this name; may be repeated
    #[arg(long = "thread", value_name = "NAME")]
    threads: Vec<String>,
    /// All threads of processes with this name; may be repeated
    #[arg(long = "process", value_name = "NAME")]
    processes: Vec<String>,
    /// Work items of kernel workqueues with this name; may be repeated
    #[arg(long = "workqueue", value_name = "NAME")]
    workqueues: Vec<String>,
    /// The duration in seconds [default: until Ctrl-C]
    #[arg(long, value_name = "N")]
    seconds: Option<f64>,
    #[command(flatten)]
    outputs: Outputs,
}

/// Runs the command.
///
/// # Errors
/// The measurement failed, or a result cannot be written.
pub(super) fn run(arguments: Arguments, interrupt: &Interrupt) -> Result<u8, Fail> {
    let patterns = |names: Vec<String>| names.into_iter().map(NamePattern::new).collect();
    let duration = arguments.seconds.map(Duration::try_from_secs_f64).transpose();
    let options = SchedOptions {
        threads: patterns(arguments.threads),
        processes: patterns(arguments.processes),
        workqueues: patterns(arguments.workqueues),
        duration: duration.map_err(|error| Fail::usage(format!("--seconds: {error}")))?,
        tier: None,
    };
    let outputs = arguments.outputs.open()?;
    let is_shown = stderr().is_terminal();
    let report = watch(&options, interrupt, &mut |report| {
        if is_shown {
            say!("\x1b[H\x1b[2J{}", report.table(LIVE_ROWS_MAX));
        }
    });
    let report = report.map_err(failed)?;
    outputs.write(&report.text(), || report.page(), &report)?;
    Ok(end(interrupt))
}
