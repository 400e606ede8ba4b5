//! `floe status`: shows the state of a mount, or lists all mounts.

mod list;

use std::{
    io::{self, IsTerminal, Write},
    path::PathBuf,
    thread,
    time::Duration,
};

use crate::{
    fail::{Exit, Fail},
    output::Output,
};
use floe_mount::{
    control::{Answer, Client, Question},
    status::{Exposition, Report, SCHEMA, add_report, write_text},
};

/// Show the state of a mount: threads, caches, pages, prefetch, and the latency of each stage of a read; without DIR, list all mounts
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct Arguments {
    /// The mountpoint
    #[arg(value_name = "DIR", required_if_eq_any = [("prometheus", "true")])]
    directory: Option<PathBuf>,
    /// Write JSON: one object, one per line with --watch, or an array without DIR
    #[arg(long)]
    json: bool,
    /// Write metrics for Prometheus
    #[arg(long, conflicts_with_all = ["json", "watch"])]
    prometheus: bool,
    /// Repeat at this interval, in seconds
    #[arg(long, value_name = "SECONDS", requires = "directory", num_args = 0..=1, default_missing_value = "1", value_parser = interval)]
    watch: Option<Duration>,
}

const HELP: &str = "\
Only the user who mounted the image can query the mount. The query does not access the mounted tree,
so a mount whose image is stuck still answers.

Examples:
  floe status
  floe status /mnt
  floe status /mnt --watch 5
  floe status /mnt --json | jq '.latency[] | {stage, p99_ns}'
  floe status /mnt --prometheus > /var/lib/node_exporter/floe.prom

Exit codes:
  0  the state was shown
  1  not a mount of Floe, the mount of another user, or its program is gone
  2  wrong usage";

/// The terminal sequence that moves to the top left corner and clears the rest.
const CLEAR: &str = "\x1b[H\x1b[J";

/// Runs the command.
///
/// # Errors
/// The mount does not answer.
pub(crate) fn run(arguments: &Arguments) -> Result<u8, Fail> {
    let Some(directory) = &arguments.directory else { return list::print(arguments.json) };
    let mounted = Client::find(directory)?;
    let Some(interval) = arguments.watch else {
        let report = ask(&mounted)?;
        return Output::run(|writer| write(writer, &report, arguments).map(|()| Exit::Done.code()));
    };
    let clears = !arguments.json && io::stdout().is_terminal();
    loop {
        let report = ask(&mounted)?;
        let mut output = Vec::new();
        if clears {
            output.extend_from_slice(CLEAR.as_bytes());
        }
        write(&mut output, &report, arguments).map_err(|error| Fail::failed(error.to_string()))?;
        if !clears && !arguments.json {
            output.push(b'\n');
        }
        let mut has_reader = false;
        Output::run(|writer| {
            writer.write_all(&output)?;
            writer.flush()?;
            has_reader = true;
            Ok(Exit::Done.code())
        })?;
        if !has_reader {
            return Ok(Exit::Done.code());
        }
        thread::sleep(interval);
    }
}

fn ask(mounted: &Client) -> Result<Report, Fail> {
    match mounted.ask(&Question::Status)? {
        Answer::Status(report) if report.schema == SCHEMA => Ok(*report),
        _ => Err(Fail::failed("the mount is served by another version of Floe: use the program that serves it")),
    }
}

fn write(writer: &mut (impl Write + ?Sized), report: &Report, arguments: &Arguments) -> io::Result<()> {
    let mut writer = writer;
    if arguments.prometheus {
        let mut exposition = Exposition::default();
        let labels = [("mountpoint", report.mountpoint.as_str()), ("device", &report.device)];
        add_report(&mut exposition.of_mount(&labels), report)?;
        return exposition.write(&mut writer);
    }
    if !arguments.json {
        return write_text(&mut writer, report);
    }
    if arguments.watch.is_some() {
        serde_json::to_writer(&mut writer, report)?;
    } else {
        serde_json::to_writer_pretty(&mut writer, report)?;
    }
    writeln!(writer)
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds: Option<f64> = text.parse().ok();
    seconds
        .filter(|seconds| *seconds >= 0.01)
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| format!("'{text}' is not a number of seconds"))
}
