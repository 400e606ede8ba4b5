//! `floe extract`: extracts an image into a directory, or as a tar archive.

mod tar;

use std::{
    ffi::OsString,
    io::{self, IsTerminal},
    num::NonZeroUsize,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use clap::Args;
use floe::{
    ExtractError, ExtractEvent, ExtractOptions, ExtractSummary, ExtractWarningCause, Image, Parts, XattrSelection,
    extract,
};
use indicatif::{HumanBytes, HumanCount, ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::{
    cancellation,
    confinement::{self, Opened, Target},
    fail::{Exit, Fail},
    fake,
    image_arguments::ImageArguments,
    output::Output,
};
use floe_image::Shown;

/// The maximum number of warnings that are printed; the rest are counted.
const PRINTED_MAX: u64 = 100;

/// Extract an image, or parts of it, into a directory or as a tar archive
///
/// Preserves owners, modes, times to the nanosecond, extended attributes (including ACLs and capabilities), hard links,
/// holes and special files. Never writes outside the directory, whatever names and links the image contains, and
/// replaces existing files only with --force. Existing directories are filled.
///
/// A file that cannot be read completely is left out and reported. Files extracted by a user other than root belong to
/// that user: owners, device nodes and protected attributes are left out and counted. Hard links that the target cannot
/// have, because they would lead from one file system to another, become copies.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    floe extract system.erofs -C root\n  \
    floe extract app.sqfs /usr/share/doc /etc -C some\n  \
    floe extract --jobs 8 --strict system.erofs -C root\n  \
    floe extract --tar - system.erofs | zstd > system.tar.zst\n\n\
    Exit codes:\n  \
    0    everything was extracted (except what needs privileges, unless --strict)\n  \
    1    entries are missing or incomplete\n  \
    2    wrong usage\n  \
    3    the file is not an image, or is broken\n  \
    130  ended by a signal; incomplete files were removed")]
pub(crate) struct Arguments {
    #[command(flatten)]
    image: ImageArguments,

    /// Paths to extract, with everything below them [default: all]. Paths are kept: /etc/fstab becomes DIR/etc/fstab
    #[arg(value_name = "PATH")]
    paths: Vec<OsString>,

    /// Extract into this directory, which gets the attributes of the image's root; it is created if it is missing
    /// [default: the current directory, which keeps its attributes unless it is empty]
    #[arg(short = 'C', long = "directory", value_name = "DIR")]
    directory: Option<PathBuf>,

    /// Write a tar archive into this file instead; - is standard output. The same image gives the same bytes
    #[arg(long, value_name = "FILE", conflicts_with_all = ["directory", "force", "no_owner", "json"])]
    tar: Option<PathBuf>,

    /// The number of threads that decode and write [default: the number of CPUs]
    #[arg(short, long, value_name = "N")]
    jobs: Option<NonZeroUsize>,

    /// Replace existing files, and empty directories in the place of files
    #[arg(short, long)]
    force: bool,

    /// Fail if owners, devices or attributes had to be left out, or files had to be copied instead of linked; with --tar, if
    /// sockets had to be left out
    #[arg(long)]
    strict: bool,

    /// Do not extract extended attributes
    #[arg(long)]
    no_xattrs: bool,

    /// Leave all files owned by the current user
    #[arg(long)]
    no_owner: bool,

    /// Print no progress bar and no summary
    #[arg(short, long)]
    quiet: bool,

    /// Write the summary as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct SummaryRecord {
    files: u64,
    directories: u64,
    symlinks: u64,
    devices: u64,
    fifos: u64,
    sockets: u64,
    hard_links: u64,
    hard_links_copied: u64,
    bytes: u64,
    failures: u64,
    owners_denied: u64,
    devices_denied: u64,
    modes_denied: u64,
    times_denied: u64,
    xattrs_denied: u64,
    seconds: f64,
}

pub(crate) fn run(arguments: &Arguments) -> Result<u8, Fail> {
    if let Some(target) = &arguments.tar {
        return tar::run(arguments, target);
    }
    let mut options = ExtractOptions { force: arguments.force, owners: !arguments.no_owner, ..Default::default() };
    if let Some(jobs) = arguments.jobs {
        options.jobs = jobs.get();
    }
    if arguments.no_xattrs {
        options.xattrs = XattrSelection::None;
    }
    if let Some(reason) = fake::refusal() {
        return Err(Fail::failed(reason));
    }
    // The current directory may be in use for other things.
    options.finish_root = arguments.directory.is_some();
    let directory = arguments.directory.as_deref().unwrap_or(Path::new("."));
    let mut target = Target::new(directory);
    let policy = confinement::extracting(&mut target, &options);
    let Opened { files, remote, tree, .. } = arguments.image.open_confined(policy)??;
    let image = Image::of(files, &arguments.image.open_options())?;
    let target = target.keep(tree);
    let cancel = cancellation::on_signals()?;
    if let Some(remote) = remote {
        cancellation::end_fetching_after(Arc::clone(&cancel), remote)?;
    }
    let paths: Vec<Vec<u8>> = arguments.paths.iter().map(|path| path.as_encoded_bytes().to_vec()).collect();
    let parts = if paths.is_empty() { Parts::All } else { Parts::Below(&paths) };
    let bar = progress_bar(arguments.quiet || arguments.json);
    let told = AtomicU64::new(0);
    let tell = |event: ExtractEvent<'_>| match event {
        ExtractEvent::Planned { attr, .. } if attr.file_type == floe::FileType::Regular => bar.inc_length(attr.size),
        ExtractEvent::Written(bytes) => bar.inc(bytes),
        // Reads fail after a signal, which needs no report.
        ExtractEvent::Warning(_) if cancel.load(Relaxed) => {}
        ExtractEvent::Warning(warning) => {
            if told.fetch_add(1, Relaxed) < PRINTED_MAX {
                bar.suspend(|| say!("floe: {}: {}", Shown(&warning.path), cause_text(&warning.cause)));
            }
        }
        // The summary counts what was left out.
        ExtractEvent::Planned { .. } | ExtractEvent::Made | ExtractEvent::Omitted { .. } => {}
    };
    let start = Instant::now();
    let result = extract(&image, parts, target, &options, &tell, &cancel);
    bar.finish_and_clear();
    let unprinted = told.into_inner().saturating_sub(PRINTED_MAX);
    if unprinted > 0 {
        say!("floe: and {unprinted} more");
    }
    let summary = match result {
        Ok(summary) => summary,
        Err(error @ ExtractError::Cancelled) => {
            return Err(Fail::failed(error.to_string()).with_exit(Exit::Interrupted));
        }
        Err(error) => return Err(Fail::failed(error.to_string())),
    };
    write_summary(arguments, &summary, start.elapsed())?;
    let incomplete = summary.failures > 0 || arguments.strict && summary.denied() + summary.hard_links_copied > 0;
    Ok(if incomplete { Exit::Failed.code() } else { Exit::Done.code() })
}

/// The cause, with advice if there is any.
fn cause_text(cause: &ExtractWarningCause) -> String {
    match cause {
        ExtractWarningCause::Target(_, error) if error.kind() == io::ErrorKind::AlreadyExists => {
            "already exists; --force replaces it".to_owned()
        }
        cause => cause.to_string(),
    }
}

pub(crate) fn progress_bar(hidden: bool) -> ProgressBar {
    if hidden || !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(0);
    let template = "{bar:30} {bytes:>10} of {total_bytes:<10} {bytes_per_sec:>12} {elapsed:>4}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

fn write_summary(arguments: &Arguments, summary: &ExtractSummary, elapsed: Duration) -> Result<(), Fail> {
    let seconds = elapsed.as_secs_f64();
    let ExtractSummary { files, directories, symlinks, hard_links, hard_links_copied, bytes, failures, .. } = *summary;
    let ExtractSummary { devices, fifos, sockets, .. } = *summary;
    let ExtractSummary { owners_denied, devices_denied, modes_denied, times_denied, xattrs_denied, .. } = *summary;
    if arguments.json {
        let record = SummaryRecord {
            files,
            directories,
            symlinks,
            devices,
            fifos,
            sockets,
            hard_links,
            hard_links_copied,
            bytes,
            failures,
            owners_denied,
            devices_denied,
            modes_denied,
            times_denied,
            xattrs_denied,
            seconds,
        };
        return Output::run(|output| {
            writeln!(output, "{}", serde_json::to_string(&record).unwrap_or_default()).map(|()| Exit::Done.code())
        })
        .map(drop);
    }
    if summary.denied() > 0 {
        let rare = [(modes_denied, "modes"), (times_denied, "times")].into_iter().filter(|(count, _)| *count > 0);
        let rare: String = rare.map(|(count, what)| format!(", {} {what}", HumanCount(count))).collect();
        say!(
            "floe: left out because of missing privileges or missing support in the target: {} owners, {} devices, {} \
             attributes{rare}",
            HumanCount(owners_denied),
            HumanCount(devices_denied),
            HumanCount(xattrs_denied)
        );
    }
    if hard_links_copied > 0 {
        say!("floe: copied, because the target cannot have the hard links: {} files", HumanCount(hard_links_copied));
    }
    if failures > 0 {
        say!("floe: {} entries are missing or incomplete", HumanCount(failures));
    }
    if arguments.quiet {
        return Ok(());
    }
    Output::run(|output| {
        writeln!(
            output,
            "{} files, {} directories, {} links, {} special files, {} in {seconds:.2} s",
            HumanCount(files),
            HumanCount(directories),
            HumanCount(symlinks + hard_links),
            HumanCount(devices + fifos + sockets),
            HumanBytes(bytes)
        )
        .map(|()| Exit::Done.code())
    })
    .map(drop)
}
