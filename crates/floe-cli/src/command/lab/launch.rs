//! `floe lab launch`: measures launches from mounted images.

use std::{
    io::{IsTerminal, Write, stderr},
    path::PathBuf,
    time::Duration,
};

use clap::ValueEnum;
use floe_image::ShownName;
use floe_lab::{
    Interrupt,
    launch::{self, Comparison, LaunchOptions, Progress, Temperature, Tier},
    report::{launch_page, launch_text},
};

use super::{Outputs, end, failed, surroundings};
use crate::fail::Fail;

/// Launch a command from mounted images, alternating between variants, and compare them
///
/// Without --image, the image of `floe demo` is used. Without COMMAND, every file of the image is read. Without
/// --variant, Floe is compared with the workqueue model, the kernel, and erofsfuse and squashfuse_ll if they are
/// installed.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    floe lab launch\n  \
    floe lab launch --image app.erofs -- {mount}/bin/app --version\n  \
    floe lab launch --image app.erofs --compare workers --launches 50 --html report.html -- {mount}/bin/app\n  \
    floe lab launch --image 64k.erofs --image-b 16k.erofs --compare windows -- {mount}/bin/app\n\n\
    {mount} in COMMAND is replaced by the mountpoint of the image, which is also the working directory.\n\n\
    Exit codes:\n  \
    0  all launches completed\n  \
    1  a launch failed, an image cannot be mounted, or a result cannot be written\n  \
    2  wrong usage\n  \
    130  ended early by a signal; what was measured until then is shown")]
pub(super) struct Arguments {
    #[command(flatten)]
    surroundings: surroundings::Surroundings,
    /// Run a predefined comparison with its load, and show published figures for it if there are any
    #[arg(long, value_enum, conflicts_with = "variants")]
    compare: Option<ComparisonName>,
    /// The state before a launch: nothing of the image in memory, the caches of earlier launches, or a running process
    #[arg(long, value_name = "cold|warm|hot", default_value = "cold")]
    temperature: Temperature,
    /// Traced launches of each variant in each block; the published table has 50
    #[arg(long, value_name = "N", default_value_t = 12)]
    launches: usize,
    /// Untraced launches of each variant in each block
    #[arg(long, value_name = "N", default_value_t = 2)]
    controls: usize,
    /// The number of blocks
    #[arg(long, value_name = "N", default_value_t = 3)]
    blocks: usize,
    /// The method of measurement [default: tracing for root, else counting]
    #[arg(long, value_enum)]
    tier: Option<TierName>,
    /// Before each cold launch, drop all caches of the machine, not only those of the image
    #[arg(long)]
    drop_caches: bool,
    /// End the run if a launch takes longer than this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    timeout: u64,
    /// For hot launches: the line that is sent to the command, which answers with one line
    #[arg(long, value_name = "LINE", default_value = "")]
    hot_line: String,
    /// Write a trace of one launch of each variant for ui.perfetto.dev into this directory
    #[arg(long, value_name = "DIR")]
    traces: Option<PathBuf>,
    #[command(flatten)]
    outputs: Outputs,
    /// The command
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum ComparisonName {
    /// The workqueue model, per-CPU threads at real-time priority, and the kernel's own workqueue
    Workers,
    /// With and without a page pool
    Pool,
    /// Sliding windows of --image and --image-b
    Windows,
    /// Read-around that waits for pages, that gives up at once, and none
    ReadAround,
    /// Floe over FUSE, Floe behind the kernel's EROFS, and the kernel's own mounts, with and without a loop device
    Fronts,
}

#[derive(Clone, Copy, ValueEnum)]
enum TierName {
    /// Traces every switch and wakeup in the kernel
    Tracing,
    /// Reads the kernel's totals for each thread
    Counting,
}

impl From<ComparisonName> for Comparison {
    fn from(name: ComparisonName) -> Self {
        match name {
            ComparisonName::Workers => Self::Workers,
            ComparisonName::Pool => Self::Pool,
            ComparisonName::Windows => Self::Windows,
            ComparisonName::ReadAround => Self::ReadAround,
            ComparisonName::Fronts => Self::Fronts,
        }
    }
}

/// Runs the command.
///
/// # Errors
/// A launch fails, or an image cannot be mounted, or a result cannot be written.
pub(super) fn run(arguments: Arguments, interrupt: &Interrupt) -> Result<u8, Fail> {
    let comparison = arguments.compare.map(Comparison::from);
    let has_second_image = arguments.surroundings.has_second_image();
    if comparison == Some(Comparison::Windows) && !has_second_image {
        return Err(Fail::usage("--compare windows: give an image of each window, with --image and --image-b"));
    }
    let demo = arguments.surroundings.demo_image()?;
    let mut command = arguments.command;
    if command.is_empty() {
        command = ["find", ".", "-type", "f", "-exec", "cat", "{}", "+"].map(str::to_owned).to_vec();
    }
    let preset = comparison.map_or(&[][..], Comparison::variants);
    let variants = arguments.surroundings.variants(demo.as_ref(), preset)?;
    let mut options = LaunchOptions::new(command, variants);
    options.comparison = comparison.map(|comparison| (comparison, has_second_image));
    options.temperature = arguments.temperature;
    options.launch_count = arguments.launches;
    options.control_count = arguments.controls;
    options.block_count = arguments.blocks;
    options.stage = arguments.surroundings.stage(comparison.map(Comparison::load))?;
    options.programs = arguments.surroundings.programs()?;
    options.drop_all_caches = arguments.drop_caches;
    options.tier = arguments.tier.map(|tier| match tier {
        TierName::Tracing => Tier::Tracing,
        TierName::Counting => Tier::Counting,
    });
    options.launch_time_max = Duration::from_secs(arguments.timeout);
    options.hot_line = arguments.hot_line;
    options.trace_directory = arguments.traces;
    if let Some(directory) = options.trace_directory.as_deref().filter(|directory| !directory.is_dir()) {
        return Err(Fail::failed(format!("--traces: there is no directory {}", directory.shown())));
    }
    let outputs = arguments.outputs.open()?;
    let is_shown = stderr().is_terminal();
    let report = launch::run(&options, interrupt, &mut |progress| {
        if is_shown {
            show(progress);
        }
    });
    if is_shown {
        crate::say::part(format_args!("\r\x1b[K"));
    }
    let report = report.map_err(failed)?;
    outputs.write(&launch_text(&report), || launch_page(&report), &report)?;
    Ok(end(interrupt))
}

fn show(progress: Progress<'_>) {
    let Progress { done, total, variant, wall_ns } = progress;
    let mut out = stderr();
    let _ = write!(
        out,
        "\r\x1b[K{done} of {total}: {variant}, {:.1} ms",
        Duration::from_nanos(wall_ns).as_secs_f64() * 1e3
    );
    let _ = out.flush();
}
