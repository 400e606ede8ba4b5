//! Extracts an image as `unsquashfs` does.

use std::{
    collections::HashSet,
    io::{self, Write},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use floe::{ExtractEvent, ExtractOptions, ExtractSummary, ExtractTarget, FileType, Image, Parts, WalkEntry, extract};

use super::{
    FATAL, NOT_FATAL,
    arguments::Arguments,
    complaints::Complaints,
    listing::{Listing, Owners},
    progress::{Amount, Progress},
    selection::{Selection, Selector},
};
use crate::{cancellation, fail::Fail, iso_time::Zone, output::remark};

/// Extracts what the command line selects.
///
/// # Errors
/// Signal handlers cannot be installed.
pub(super) fn run(
    image: &Image,
    arguments: &Arguments,
    target: ExtractTarget,
    owners: Owners,
    zone: Zone,
) -> Result<u8, Fail> {
    let cancel = cancellation::on_signals()?;
    let options = options(arguments);
    let block_bytes = image.file_system().info().block_size;
    let mut amount = Amount::default();
    if !arguments.quiet || arguments.progress.is_some() {
        amount = planned(image, arguments, u64::from(block_bytes), &cancel);
    }
    if !arguments.quiet {
        let (jobs, Amount { inodes, blocks }) = (options.jobs, amount);
        remark(format_args!("Parallel unsquashfs: Using {jobs} {}\n", counted(jobs as u64, "processor", "processors")));
        remark(format_args!("{inodes} inodes ({blocks} blocks) to write\n\n"));
    }
    let progress = Progress::new(arguments.progress, amount, block_bytes);
    let complaints = Complaints::new(arguments, &progress);
    let form = arguments.form.filter(|_| arguments.info);
    let listing = Listing::new(arguments, image, owners, zone);
    let tell = |event: ExtractEvent<'_>| match event {
        ExtractEvent::Planned { path, attr } if form.is_some() => {
            let entry = WalkEntry { path: path.to_vec(), depth: 0, attr: arguments.with_time(*attr) };
            let mut line = Vec::new();
            // Writing to memory does not fail, and errors of a closed stdout are ignored.
            let _ = listing.write(&entry, &mut line);
            let _ = io::stdout().write_all(&line);
        }
        ExtractEvent::Made => progress.made(),
        ExtractEvent::Written(bytes) => progress.written(bytes),
        ExtractEvent::Omitted { path, attr, parts } => complaints.omitted(path, attr, parts),
        ExtractEvent::Warning(warning) => complaints.failed(warning),
        ExtractEvent::Planned { .. } => {}
    };
    let mut selector = Selector::new(arguments);
    let mut choose = |entry: &WalkEntry| selector.choose(entry);
    let extracted = extract(image, Parts::Where(&mut choose), target, &options, &tell, &cancel);
    let outcome = complaints.into_outcome();
    let created = extracted.as_ref().ok().map(|summary| without(summary, &outcome.incomplete));
    let made = created.map(|ExtractSummary { files, symlinks, devices, fifos, sockets, hard_links, .. }| {
        files + symlinks + devices + fifos + sockets + hard_links
    });
    progress.finish(made, created.is_some_and(|created| created.failures == 0));
    if let Err(error) = extracted {
        say!("FATAL ERROR: {error}");
    }
    match created {
        Some(created) if !outcome.is_fatal => {
            if !arguments.quiet {
                say_created(&created);
            }
            Ok(if outcome.has_errors && !arguments.no_exit_code { NOT_FATAL } else { 0 })
        }
        _ => Ok(FATAL),
    }
}

/// The options of an extraction.
pub(super) fn options(arguments: &Arguments) -> ExtractOptions {
    ExtractOptions {
        jobs: arguments.jobs.unwrap_or_else(|| ExtractOptions::default().jobs),
        force: arguments.force,
        owners: rustix::process::geteuid().is_root(),
        time: arguments.time,
        xattrs: arguments.xattrs.clone(),
        ..ExtractOptions::default()
    }
}

/// How much will be created. The data of a file with several names counts once. Faults of the image are left for the
/// extraction to report.
fn planned(image: &Image, arguments: &Arguments, block_bytes: u64, cancel: &AtomicBool) -> Amount {
    let (mut amount, mut counted) = (Amount::default(), HashSet::new());
    for entry in Selection::new(image, arguments).flatten() {
        if cancel.load(Relaxed) {
            break;
        }
        let attr = &entry.attr;
        amount.inodes += u64::from(attr.file_type != FileType::Directory);
        if attr.file_type == FileType::Regular && (attr.link_count < 2 || counted.insert(attr.nid)) {
            amount.blocks = amount.blocks.saturating_add(attr.size.div_ceil(block_bytes.max(1)));
        }
    }
    amount
}

/// The created entries, without `incomplete` links and special files, which the original does not count.
fn without(summary: &ExtractSummary, incomplete: &ExtractSummary) -> ExtractSummary {
    ExtractSummary {
        symlinks: summary.symlinks.saturating_sub(incomplete.symlinks),
        devices: summary.devices.saturating_sub(incomplete.devices),
        fifos: summary.fifos.saturating_sub(incomplete.fifos),
        sockets: summary.sockets.saturating_sub(incomplete.sockets),
        ..*summary
    }
}

fn say_created(created: &ExtractSummary) {
    let say = |count: u64, one: &str, many: &str| {
        remark(format_args!("created {count} {}\n", counted(count, one, many)));
    };
    remark("\n");
    say(created.files, "file", "files");
    say(created.directories, "directory", "directories");
    say(created.symlinks, "symlink", "symlinks");
    say(created.devices, "device", "devices");
    say(created.fifos, "fifo", "fifos");
    say(created.sockets, "socket", "sockets");
    say(created.hard_links, "hardlink", "hardlinks");
}

fn counted<'t>(count: u64, one: &'t str, many: &'t str) -> &'t str {
    if count == 1 { one } else { many }
}
