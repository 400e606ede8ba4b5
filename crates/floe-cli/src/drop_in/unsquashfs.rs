//! `unsquashfs`: its options and its output format.

mod arguments;
mod cat;
mod complaints;
mod extraction;
mod links;
mod listing;
pub(in crate::drop_in) mod name_list;
pub(in crate::drop_in) mod path_patterns;
pub(in crate::drop_in) mod progress;
mod pseudo;
mod selection;
mod superblock;
pub(in crate::drop_in) mod time;
mod wildcards;

use std::{
    ffi::OsString,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use floe::{FormatImage, Image};
use floe_sandbox::Mode;

use floe_engine::Blocking;

use crate::{
    confinement::{self, Opened, OutputFile, Target},
    fail::Fail,
    fake,
    iso_time::Zone,
    output::Output,
};
pub(super) use arguments::HELP;
use arguments::{Arguments, Form, Task};
use floe_image::{Shown, ShownName};
use listing::{Listing, Owners};
use selection::Selection;

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
    if arguments.task != Task::Extract {
        fake::leave();
    } else if let Some(reason) = fake::refusal() {
        say!("FATAL ERROR: {reason}");
        return Ok(FATAL);
    }
    // The user database and the time zone are not accessible once the process is confined.
    let owners = Owners::new(&arguments);
    let zone = if arguments.is_utc { Zone::UTC } else { Zone::local() };
    let (mut target, mut pseudo_file) = (None, None);
    let policy = match arguments.task {
        Task::Extract => {
            let target = target.insert(Target::new(&arguments.target));
            confinement::extracting(target, &extraction::options(&arguments))
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
    let (files, tree) = Opened::split(confinement::open(&arguments.image, &options, policy, sandbox)?);
    let image = match files.and_then(|files| Image::of(files, &options)) {
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
    match arguments.task {
        Task::Superblock => Output::run(|output| {
            superblock::write(
                squashfs,
                image.reader().volume().block_reader(Blocking::Allowed).as_ref(),
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
        Task::Extract => {
            let target = target.unwrap_or_else(|| Target::new(&arguments.target));
            extraction::run(&image, &arguments, target.keep(tree), owners, zone)
        }
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

/// The default target directory.
fn default_target() -> PathBuf {
    PathBuf::from("squashfs-root")
}

/// The default form of a listing.
const PLAIN: Form = Form { has_attributes: false, is_numeric: false, is_concise: false };
