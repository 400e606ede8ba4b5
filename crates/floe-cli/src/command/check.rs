//! `floe check`: checks an image.

use std::{
    io::{self, Write},
    num::NonZeroUsize,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

use clap::Args;
use floe::{CheckOptions, CheckSummary, Finding, check_files};
use floe_sync::Mutex;
use indicatif::{BinaryBytes, HumanCount};
use serde::Serialize;

use crate::{
    cancellation,
    confinement::{self, Opened},
    fail::{Exit, Fail},
    image_arguments::ImageArguments,
    output::Output,
    remote,
};
use floe_image::{Shown, ShownName, json_name};

/// The maximum number of findings that are printed; the rest are counted.
const PRINTED_MAX: u64 = 10_000;

/// Check an image for broken metadata and for data that does not decode
///
/// Checks the superblock and its checksum, every inode, the order of names, the bounds and overlaps of stored data,
/// link counts and cycles, and decodes all data on all CPUs. Repairs nothing: images are read-only.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    floe check system.erofs\n  \
    floe check --jobs 8 app.sqfs\n  \
    floe check --json system.erofs | jq -r 'select(.path) | .path'\n\n\
    With --json there is one object per line: each finding (severity, rule, path, nid, device, offset),\n\
    then the summary.\n\n\
    Exit codes: those of fsck\n  \
    0   no errors\n  \
    4   errors\n  \
    8   the image could not be checked, or the report not be written: a file, a permission, no image at all\n  \
    16  wrong usage\n  \
    32  ended by a signal")]
pub(crate) struct Arguments {
    #[command(flatten)]
    image: ImageArguments,

    /// The number of decoding threads [default: the number of CPUs]
    #[arg(short, long, value_name = "N")]
    jobs: Option<NonZeroUsize>,

    /// Check metadata only; neither read nor decode data
    #[arg(long)]
    metadata_only: bool,

    /// Print nothing if there are no findings
    #[arg(short, long)]
    quiet: bool,

    /// Write one JSON object per line
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct FindingRecord<'a> {
    severity: String,
    rule: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nid: Option<u64>,
    device: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<u64>,
}

#[derive(Serialize)]
struct SummaryRecord {
    format: String,
    inodes: u64,
    blocks: u64,
    stored_bytes: u64,
    decoded_bytes: u64,
    errors: u64,
    warnings: u64,
    seconds: f64,
}

pub(crate) fn run(arguments: &Arguments) -> Result<u8, Fail> {
    // While a remote image is opened, which can take long, a signal ends the program at once.
    let is_remote = remote::is_url(&arguments.image.image);
    let handled = || cancellation::on_signals().map_err(|fail| fail.with_exit(Exit::NotChecked));
    let cancel = if is_remote { None } else { Some(handled()?) };
    let mut options = CheckOptions { data: !arguments.metadata_only, ..CheckOptions::default() };
    if let Some(jobs) = arguments.jobs {
        options.jobs = jobs.get();
    }
    let start = Instant::now();
    let opened =
        arguments.image.open_confined(confinement::reading()).map_err(|fail| fail.with_exit(Exit::NotChecked))?;
    let cancel = cancel.map_or_else(handled, Ok)?;
    if let Ok(Opened { remote: Some(remote), .. }) = &opened {
        let ends = cancellation::end_fetching_after(Arc::clone(&cancel), Arc::clone(remote));
        ends.map_err(|fail| fail.with_exit(Exit::NotChecked))?;
    }
    let files = opened.map(|opened| opened.files);
    let mut verdict = Exit::NotChecked;
    let written = Output::run(|output| {
        let (told, output) = (AtomicU64::new(0), Mutex::new(output));
        // If a line cannot be written, the error also occurs when the summary is written.
        let tell = |finding: &Finding| {
            // Reads of a remote image fail after a signal, which is no fault of the image.
            if is_remote && cancel.load(Relaxed) {
                return;
            }
            if told.fetch_add(1, Relaxed) < PRINTED_MAX {
                let line = finding_line(finding, arguments.json);
                let _ = output.lock().write_all(line.as_bytes());
            }
        };
        let engine_options = arguments.image.open_options().engine;
        let result = files.and_then(|files| check_files(files, &engine_options, &options, &tell, &cancel));
        let output = output.into_inner();
        match result {
            Ok(summary) => {
                verdict = exit_of(&summary);
                write_summary(arguments, &summary, start.elapsed().as_secs_f64(), output)?;
            }
            Err(error) => say!("floe: {error}"),
        }
        Ok(Exit::Done.code())
    });
    match (written, verdict) {
        // Success is only reported if the report is complete. A closed pipe is no error.
        (Err(fail), Exit::Done) => Err(fail.with_exit(Exit::NotChecked)),
        (Err(fail), verdict) => Err(fail.with_exit(verdict)),
        (Ok(_), verdict) => Ok(verdict.code()),
    }
}

fn exit_of(summary: &CheckSummary) -> Exit {
    match summary {
        CheckSummary { is_cancelled: true, .. } => Exit::CheckCancelled,
        CheckSummary { errors: 0, .. } => Exit::Done,
        _ => Exit::HasErrors,
    }
}

fn finding_line(finding: &Finding, json: bool) -> String {
    let Finding { severity, rule, place, path } = finding;
    if json {
        let record = FindingRecord {
            severity: severity.to_string(),
            rule,
            path: path.as_deref().map(json_name),
            nid: place.nid.map(|nid| nid.0),
            device: place.device.0,
            offset: place.offset,
        };
        return serde_json::to_string(&record).unwrap_or_default() + "\n";
    }
    match path {
        Some(path) => format!("{severity}: {}: {rule}{place}\n", Shown(path)),
        None => format!("{severity}: {rule}{place}\n"),
    }
}

fn write_summary(
    arguments: &Arguments,
    summary: &CheckSummary,
    seconds: f64,
    output: &mut dyn Write,
) -> io::Result<()> {
    let CheckSummary { format, inodes, blocks, stored_bytes, decoded_bytes, errors, warnings, .. } = *summary;
    if arguments.json {
        let format = format.to_string();
        let record = SummaryRecord { format, inodes, blocks, stored_bytes, decoded_bytes, errors, warnings, seconds };
        return writeln!(output, "{}", serde_json::to_string(&record).unwrap_or_default());
    }
    let found = errors + warnings;
    if found > PRINTED_MAX {
        writeln!(output, "and {} more", HumanCount(found - PRINTED_MAX))?;
    }
    if arguments.quiet && found == 0 {
        return Ok(());
    }
    let count = |count: u64, noun: &str| format!("{} {noun}{}", HumanCount(count), if count == 1 { "" } else { "s" });
    let verdict = match (summary.is_cancelled, found) {
        (true, _) => "not finished".to_owned(),
        (false, 0) => "no faults".to_owned(),
        (false, _) => format!("{}, {}", count(errors, "error"), count(warnings, "warning")),
    };
    writeln!(
        output,
        "{}: {format}, {}, {}, {} of data from {} in {seconds:.2} s: {verdict}",
        arguments.image.image.shown(),
        count(inodes, "inode"),
        count(blocks, "encoded block"),
        BinaryBytes(decoded_bytes),
        BinaryBytes(stored_bytes),
    )
}
