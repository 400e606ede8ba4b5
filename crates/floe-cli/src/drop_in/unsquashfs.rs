//! `unsquashfs`: its options and its output format.

mod arguments;
mod links;
mod listing;
mod pattern;
mod pseudo;
mod superblock;
mod time;

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
    shown::Shown,
};
pub(super) use arguments::HELP;
use arguments::{Arguments, Task};
use listing::{Form, Listing, Owners};

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
    // Extraction needs the user database, which is not accessible once the process is confined.
    let owners = Owners::new(&arguments);
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
            say!("Could not open {}, because {error}", path.display());
            return Ok(FATAL);
        }
        Err(error) => {
            say!("FATAL ERROR: {error}");
            return Ok(FATAL);
        }
    };
    let FormatImage::Squashfs(squashfs) = image.format_image() else {
        say!("FATAL ERROR: Can't find a valid SQUASHFS superblock on {}", arguments.image.display());
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
                output,
            )
            .map(|()| 0)
        }),
        Task::BuiltTime => {
            let seconds = image.file_system().info().built.seconds;
            Output::run(|output| writeln!(output, "{seconds}").map(|()| 0))
        }
        Task::Pseudo => pseudo::write(&image, &arguments, pseudo_file),
        Task::Cat => cat(&image, &arguments),
        Task::List => list(&image, &arguments, owners),
        Task::Extract => extract_all(&image, &arguments, owners),
    }
}

/// Writes the named files to standard output.
fn cat(image: &Image, arguments: &Arguments) -> Result<u8, Fail> {
    Output::run(|output| {
        let (mut exit, mut piece) = (0, vec![0; 1 << 20]);
        for path in &arguments.names {
            let found = image.resolve(path.as_bytes()).map_err(|error| error.to_string());
            let mut position = 0;
            let result = found.and_then(|nid| {
                loop {
                    match image.read_at(nid, position, &mut piece) {
                        Ok(0) => return Ok(Ok(())),
                        Ok(len) => {
                            if let Err(error) = output.write_all(&piece[..len]) {
                                return Ok(Err(error));
                            }
                            position += len as u64;
                        }
                        Err(error) => return Err(error.to_string()),
                    }
                }
            });
            match result {
                Ok(written) => written?,
                Err(message) => {
                    say!("cat: {message}");
                    exit = NOT_FATAL;
                }
            }
        }
        Ok(exit)
    })
}

fn list(image: &Image, arguments: &Arguments, owners: Owners) -> Result<u8, Fail> {
    Output::run(|output| {
        let listing = Listing::new(arguments, image, owners);
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

fn extract_all(image: &Image, arguments: &Arguments, owners: Owners) -> Result<u8, Fail> {
    let cancel = cancellation::on_signals()?;
    let options = extract_options(arguments);
    let is_partial = !arguments.selected.is_empty() || !arguments.excluded.is_empty() || arguments.depth_max.is_some();
    let (mut paths, mut has_fault) = (Vec::new(), false);
    if is_partial {
        for entry in Selection::new(image, arguments) {
            match entry {
                Ok(entry) => paths.push(entry.path),
                Err(message) => {
                    say!("FATAL ERROR: {message}");
                    has_fault = true;
                }
            }
        }
    }
    let parts = if is_partial { Parts::Only(&paths) } else { Parts::All };
    if !arguments.quiet {
        remark(format_args!("Parallel unsquashfs: Using {} processors\n", options.jobs));
    }
    let form = arguments.form.filter(|_| arguments.info);
    let listing = Listing::new(arguments, image, owners);
    let is_in_the_way = AtomicBool::new(false);
    let tell = |event: ExtractEvent<'_>| match event {
        ExtractEvent::Planned { path, attr } if form.is_some() => {
            let entry = WalkEntry { path: path.to_vec(), depth: 0, attr: arguments.with_time(*attr) };
            let mut line = Vec::new();
            // Writing to memory does not fail, and errors of a closed stdout are ignored.
            let _ = listing.write(&entry, &mut line);
            let _ = io::stdout().write_all(&line);
        }
        ExtractEvent::Warning(warning) => {
            if matches!(&warning.cause, ExtractWarningCause::Target(_, error) if error.kind() == io::ErrorKind::AlreadyExists)
            {
                // At such a file, the original ends.
                is_in_the_way.store(true, Relaxed);
            }
            let kind = if matches!(warning.cause, ExtractWarningCause::Image(_)) { "FATAL ERROR" } else { "ERROR" };
            say!("{kind}: {}: {}", Shown(&warning.path), warning.cause);
        }
        _ => {}
    };
    let extracted = extract(image, parts, &arguments.target, &options, &tell, &cancel);
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
        _ if has_fault || is_in_the_way.into_inner() => FATAL,
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

/// The parts of an image that the names on the command line select.
struct Selection<'a> {
    walk: floe::Walk,
    arguments: &'a Arguments,
}

impl<'a> Selection<'a> {
    fn new(image: &Image, arguments: &'a Arguments) -> Self {
        Self { walk: image.walk(), arguments }
    }
}

impl Iterator for Selection<'_> {
    type Item = Result<WalkEntry, String>;

    fn next(&mut self) -> Option<Self::Item> {
        let Arguments { selected, excluded, depth_max, .. } = self.arguments;
        loop {
            let entry = match self.walk.next()? {
                Ok(entry) => entry,
                Err(failed) => return Some(Err(failed.to_string())),
            };
            let is_directory = entry.attr.file_type == floe::FileType::Directory;
            let is_wanted = (selected.is_empty() || selected.match_or_lead(&entry.path, is_directory))
                && !excluded.match_whole(&entry.path)
                && depth_max.is_none_or(|max| entry.depth <= max);
            if is_wanted {
                return Some(Ok(WalkEntry { attr: self.arguments.with_time(entry.attr), ..entry }));
            }
            if is_directory {
                self.walk.skip_directory();
            }
        }
    }
}

/// The default target directory.
fn default_target() -> PathBuf {
    PathBuf::from("squashfs-root")
}

/// The default form of a listing.
const PLAIN: Form = Form { has_attributes: false, is_numeric: false, is_concise: false };
