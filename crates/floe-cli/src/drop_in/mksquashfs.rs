//! `mksquashfs` and `sqfstar`: their options and their output format.

mod accounts;
pub(in crate::drop_in) mod arguments;
pub(in crate::drop_in) mod compressor;
mod info;
mod option_table;
pub(in crate::drop_in) mod paths;
mod program;
mod pseudo;
mod report;
pub(in crate::drop_in) mod size;

use std::{
    ffi::OsString,
    io::{self, Write},
    ops::ControlFlow,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use arguments::{Order, Request, parse};
use floe::{ImageVerifier, Thoroughness};
use floe_mkfs::{Error, Format, Phase, Progress, Source, SquashfsOptions, Summary, build_unnamed};
pub(in crate::drop_in) use option_table::help;
pub(in crate::drop_in) use program::Program;

use super::unsquashfs::progress::{Amount, Form, Progress as Bar};
use crate::{cancellation, fail::Fail, fake, output::Output, root_hash_file::StaleRootHashes};

/// The exit code for all failures.
const FATAL: u8 = 1;
/// How long a build may continue after a signal before it checks for cancellation.
const SIGNAL_PATIENCE: Duration = Duration::from_millis(400);

/// Runs one of the programs.
///
/// # Errors
/// Signal handlers cannot be installed.
pub(super) fn run(program: Program, arguments: &[OsString]) -> Result<u8, Fail> {
    let order = match parse(program, arguments) {
        Ok(Request::Build(order)) => order,
        Ok(Request::Help) => return Output::print(help(program)),
        Ok(Request::Version) => {
            let (name, version) = (program.name(), env!("CARGO_PKG_VERSION"));
            return Output::print(format_args!("{name} version 4.7.5 (floe {version})\n"));
        }
        Err(message) => {
            say!("{}: {message}", program.name());
            return Ok(FATAL);
        }
    };
    if order.sources.iter().any(|source| matches!(source, Source::Directory(_) | Source::Entry(_)))
        && let Some(reason) = fake::refusal()
    {
        say!("FATAL ERROR: {reason}");
        return Ok(FATAL);
    }
    order.notes.iter().for_each(|note| say!("{note}"));
    let Format::Squashfs(squashfs) = &order.build.format else { return Ok(FATAL) };
    if !order.is_quiet {
        let mut stdout = io::stdout().lock();
        let _ = report::begin(&order.build, squashfs, &mut stdout).and_then(|()| stdout.flush());
    }
    match build(&order, squashfs)? {
        Ok(summary) => {
            summary.notes().iter().for_each(|note| say!("{note}"));
            if let Some(Err(message)) = order.info.as_ref().map(|target| info::write(&order.build, target)) {
                say!("FATAL ERROR: {message}");
                return Ok(FATAL);
            }
            if !order.is_quiet {
                let mut stdout = io::stdout().lock();
                let told = report::end(&summary, &order.build, squashfs, order.compressor, &mut stdout);
                let _ = told.and_then(|()| stdout.flush());
            }
            Ok(0)
        }
        Err(error) => {
            say!("FATAL ERROR: {error}");
            Ok(FATAL)
        }
    }
}

/// Builds the image; the outer error is about signal handlers.
pub(in crate::drop_in) fn build(order: &Order, squashfs: &SquashfsOptions) -> Result<Result<Summary, Error>, Fail> {
    let stop = cancellation::on_signals()?;
    let temporaries = order.build.temporaries.clone();
    let cancelled = || Error::Cancelled.to_string();
    cancellation::end_after_signal(SIGNAL_PATIENCE, move || temporaries.remove().then(cancelled))?;
    let mut verifier = ImageVerifier { thoroughness: Thoroughness::Sample, jobs: order.build.jobs };
    let block_bytes = 1 << squashfs.block_size_log2;
    let mut shown = ShownProgress { form: order.progress, block_bytes, bar: None, done: 0, stop: &stop };
    let built = build_unnamed(&order.build, &order.sources, Some(&mut verifier), &mut shown);
    if let Some(bar) = shown.bar.take() {
        bar.finish(None, built.is_ok());
    }
    Ok(built.and_then(|complete| {
        let stale = StaleRootHashes::of(&order.build.output, None);
        let summary = complete.finish(&stale.companions)?;
        stale.notes.iter().for_each(|note| say!("{note}"));
        Ok(summary)
    }))
}

/// Shows how much of the data is compressed.
struct ShownProgress<'a> {
    form: Option<Form>,
    block_bytes: u32,
    bar: Option<Bar>,
    done: u64,
    stop: &'a AtomicBool,
}

impl Progress for ShownProgress<'_> {
    fn advance(&mut self, phase: Phase, done: u64, total: u64) -> ControlFlow<()> {
        if phase == Phase::Data && self.form.is_some() {
            let amount = || Amount { inodes: 0, blocks: total.div_ceil(u64::from(self.block_bytes)) };
            let bar = self.bar.get_or_insert_with(|| Bar::new(self.form, amount(), self.block_bytes));
            bar.written(done.saturating_sub(self.done));
            self.done = self.done.max(done);
        }
        if self.stop.load(Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}
