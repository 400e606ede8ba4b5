//! `unsquashfs`: its options and its output format.

mod arguments;
mod cat;
mod links;
mod listing;
mod name_list;
mod path_patterns;
mod pattern;
mod pseudo;
mod selection;
mod superblock;
mod time;
mod wildcards;

use std::{
    ffi::OsString,
    io::{self, Write},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use floe::{
    ExtractEvent, ExtractOptions, ExtractSummary, ExtractWarningCause, FormatImage, Image, Parts, WalkEntry, extract,
};
use floe_sandbox::Mode;

use floe_engine::Blocking;

use crate::{
    cancellation,
    confinement::{self, OutputFile, Target},
    fail::Fail,
    output::{Output, remark},
    zone::Zone,
};
pub(super) use arguments::HELP;
use arguments::{Arguments, Task};
use floe_image::{Shown, ShownName};
use listing::{Form, Listing, Owners};
use selection::{Selection, Selector};

/// The exit code of an error that ended the program.
const FATAL: u8 = 1;

/// The exit code of errors that did not end the program.
const NOT_FATAL: u8 = 2;

/// Runs the program.
///
/// # Errors
/// Standard output cannot be written, or signal handlers cannot be installed.
pub(super) fn run(arguments: &[OsString], sandbox: Mode) -> Result<u8, Fail> {
    let mut arguments = match Arguments::parse(arguments) {
        Ok(arguments) => arguments,
        Err(exit) => return Ok(exit),
    };
    // The user database and the time zone are not accessible once the process is confined.
    let owners = Owners::new(&arguments);
    let zone = if arguments.is_utc { Zone::UTC } else { Zone::local() };
    let (mut target, mut pseudo_file) = (None, None);
    let policy = match arguments.task {
        Task::Extract => {
            let target = target.insert(Target::new(&arguments.target));
            confinement::extracting(target, &extract_options(&arguments))
        }
        Task::Pseudo if arguments.pseudo_file != "-" => {
            match OutputFile::open(Path::new(&arguments.pseudo_file)) {
                Ok(file) => pseudo_file = Some(file),
                Err(error) => {
                    say!("FATAL ERROR: {}: {error}", Shown(arguments.pseudo_file.as_bytes()));
                    return Ok(FATAL);
                }
            }
            confinement::reading()
        }
        _ => confinement::reading(),
    };
    let options = arguments.open_options();
    let opened = confinement::open(&arguments.image, &options, policy, sandbox)?;
    let image = match opened.and_then(|opened| Image::of(opened.files, &options.engine)) {
        Ok(image) => image,
        Err(floe::OpenError::File { path, error }) => {
            say!("Could not open {}, because {error}", path.shown());
            return Ok(FATAL);
        }
        Err(error) => {
            say!("FATAL ERROR: {}", Fail::from(error).with_offset_option("-offset "));
            return Ok(FATAL);
        }
    };
    let FormatImage::Squashfs(squashfs) = image.format_image() else {
        say!("FATAL ERROR: Can't find a valid SQUASHFS superblock on {}", arguments.image.shown());
        return Ok(FATAL);
    };
    if let Err(exit) = arguments.follow_links(&image) {
        return Ok(exit);
    }
    target.into_iter().for_each(Target::keep);
    match arguments.task {
        Task::Superblock => Output::run(|output| {
            superblock::write(
                squashfs,
                image.reader().engine().block_reader(Blocking::Allowed).as_ref(),
                &arguments.image,
                &zone,
                output,
            )
            .map(|()| 0)
        }),
        Task::BuiltTime => {
            let seconds = image.file_system().info().built.seconds;
            Output::run(|output| writeln!(output, "{seconds}").map(|()| 0))
        }
        Task::Pseudo => pseudo::write(&image, &arguments, pseudo_file),
        Task::Cat => cat::write(&image, &arguments),
        Task::List => list(&image, &arguments, owners, zone),
        Task::Extract => extract_all(&image, &arguments, owners, zone),
    }
}

fn list(image: &Image, arguments: &Arguments, owners: Owners, zone: Zone) -> Result<u8, Fail> {
    Output::run(|output| {
        let listing = Listing::new(arguments, image, owners, zone);
        let mut exit = 0;
        for entry in Selection::new(image, arguments) {
            match entry {
                Ok(entry) => listing.write(&entry, output)?,
                Err(message) => {
                    say!("FATAL ERROR: {message}");
                    exit = FATAL;
                }
            }
        }
        Ok(exit)
    })
}

fn extract_all(image: &Image, arguments: &Arguments, owners: Owners, zone: Zone) -> Result<u8, Fail> {
    let cancel = cancellation::on_signals()?;
    let options = extract_options(arguments);
    let mut selector = Selector::new(arguments);
    let mut choose = |entry: &WalkEntry| selector.choose(entry);
    if !arguments.quiet {
        remark(format_args!("Parallel unsquashfs: Using {} processors\n", options.jobs));
    }
    let form = arguments.form.filter(|_| arguments.info);
    let listing = Listing::new(arguments, image, owners, zone);
    let is_fatal = AtomicBool::new(false);
    let tell = |event: ExtractEvent<'_>| match event {
        ExtractEvent::Planned { path, attr } if form.is_some() => {
            let entry = WalkEntry { path: path.to_vec(), depth: 0, attr: arguments.with_time(*attr) };
            let mut line = Vec::new();
            // Writing to memory does not fail, and errors of a closed stdout are ignored.
            let _ = listing.write(&entry, &mut line);
            let _ = io::stdout().write_all(&line);
        }
        ExtractEvent::Warning(warning) => {
            // At faults of the image, and at existing files, the original ends.
            let (kind, ends) = match &warning.cause {
                ExtractWarningCause::Image(_) if !arguments.ignores_errors => ("FATAL ERROR", true),
                ExtractWarningCause::Target(_, error) => ("ERROR", error.kind() == io::ErrorKind::AlreadyExists),
                _ => ("ERROR", false),
            };
            is_fatal.fetch_or(ends, Relaxed);
            say!("{kind}: {}: {}", Shown(&warning.path), warning.cause);
        }
        _ => {}
    };
    let extracted = extract(image, Parts::Where(&mut choose), &arguments.target, &options, &tell, &cancel);
    let summary = match extracted {
        Ok(summary) => summary,
        Err(error) => {
            say!("FATAL ERROR: {error}");
            return Ok(FATAL);
        }
    };
    if !arguments.quiet {
        say_created(&summary);
    }
    // The original never sets owners as another user than root, and does not report them.
    let ExtractSummary { devices_denied, xattrs_denied, .. } = summary;
    if devices_denied > 0 || xattrs_denied > 0 {
        say!(
            "ERROR: left out because of missing privileges or missing support in the target: {devices_denied} devices, \
             {xattrs_denied} extended attributes"
        );
    }
    let exit = match summary.failures + devices_denied + xattrs_denied {
        _ if is_fatal.into_inner() => FATAL,
        0 if !arguments.strict || summary.owners_denied == 0 => 0,
        _ if arguments.strict => FATAL,
        _ => NOT_FATAL,
    };
    Ok(if arguments.no_exit_code && exit == NOT_FATAL { 0 } else { exit })
}

fn extract_options(arguments: &Arguments) -> ExtractOptions {
    ExtractOptions {
        jobs: arguments.jobs.unwrap_or_else(|| ExtractOptions::default().jobs),
        force: arguments.force,
        owners: rustix::process::geteuid().is_root(),
        time: arguments.time,
        xattrs: arguments.xattrs.clone(),
        ..ExtractOptions::default()
    }
}

fn say_created(summary: &ExtractSummary) {
    let count = |count: u64, one: &str, many: &str| {
        remark(format_args!("created {count} {}\n", if count == 1 { one } else { many }));
    };
    remark("\n");
    count(summary.files, "file", "files");
    count(summary.directories, "directory", "directories");
    count(summary.symlinks, "symlink", "symlinks");
    count(summary.devices, "device", "devices");
    count(summary.fifos, "fifo", "fifos");
    count(summary.sockets, "socket", "sockets");
    count(summary.hard_links, "hardlink", "hardlinks");
}

/// The default target directory.
fn default_target() -> PathBuf {
    PathBuf::from("squashfs-root")
}

/// The default form of a listing.
const PLAIN: Form = Form { has_attributes: false, is_numeric: false, is_concise: false };
