//! `sqfs2tar`.

use std::{
    ffi::OsString,
    io::{self, IsTerminal},
    path::Path,
};

use floe::{
    EngineOptions, Format, Image, OpenOptions, Parts, TarError, TarOmission, TarOptions, VolumeOptions, WorkerMode,
    XattrSelection, write_tar,
};
use floe_image::{Shown, ShownName};
use floe_sandbox::Mode;

use super::{FAILED, Program, plain_path};
use crate::{
    cancellation,
    confinement::{self, Opened},
    fail::Fail,
    fake,
    output::Output,
};

const PROGRAM: Program = Program::Sqfs2tar;

/// The order on the command line.
#[derive(Default)]
struct Order {
    subdirectories: Vec<Vec<u8>>,
    root_name: Option<Vec<u8>>,
    keeps_directory: bool,
    no_xattrs: bool,
    no_links: bool,
    no_skip: bool,
}

/// Runs the program.
///
/// # Errors
/// Standard output cannot be written, or signal handlers cannot be installed.
pub(in crate::drop_in) fn run(arguments: &[OsString], sandbox: Mode) -> Result<u8, Fail> {
    let mut order = Order::default();
    let operands = PROGRAM.options(arguments, |letter, value| {
        match letter {
            'd' => order.subdirectories.push(plain_path(value)?),
            'r' if matches!(value.as_encoded_bytes(), b"." | b"./") => order.root_name = Some(b".".to_vec()),
            'r' => {
                let invalid = |_| format!("Invalid root directory '{}'.", value.shown());
                order.root_name = Some(plain_path(value).map_err(invalid)?);
            }
            'k' => order.keeps_directory = true,
            's' => order.no_skip = true,
            'X' => order.no_xattrs = true,
            'L' => order.no_links = true,
            _ => {}
        }
        Ok(())
    })?;
    let image = match operands.map(|operands| PROGRAM.image(operands)) {
        Ok(Ok(image)) => image,
        Ok(Err(message)) => return PROGRAM.wrong(&message),
        Err(exit) => return Ok(exit),
    };
    if io::stdout().is_terminal() {
        return PROGRAM.failed("standard output is a terminal: redirect it");
    }
    fake::leave();
    order.write(Path::new(&image), sandbox)
}

impl Order {
    fn write(&self, path: &Path, sandbox: Mode) -> Result<u8, Fail> {
        let engine = EngineOptions { workers: WorkerMode::Inline, reserved_pages: 0, ..OpenOptions::default().engine };
        let volume = VolumeOptions { read_around: false, ..VolumeOptions::default() };
        let options = OpenOptions { engine, volume, ..OpenOptions::default() };
        let opened = confinement::open(path, &options, confinement::reading(), sandbox)?;
        let image = match opened.and_then(|Opened { files, .. }| Image::of(files, &options)) {
            Ok(image) => image,
            Err(error) => return PROGRAM.failed(&Fail::from(error).to_string()),
        };
        if image.format() != Format::Squashfs {
            return PROGRAM.failed(&format!("{}: it is not a SquashFS image: use floe extract --tar -", path.shown()));
        }
        let mut paths = self.subdirectories.as_slice();
        let mut image = image;
        if let [directory] = paths
            && !self.keeps_directory
        {
            image = match image.below(directory) {
                Ok(below) => below,
                Err(error) => return PROGRAM.failed(&error.to_string()),
            };
            paths = &[];
        }
        let cancel = cancellation::on_signals()?;
        let tar = TarOptions {
            root_name: self.root_name.clone(),
            xattrs: if self.no_xattrs { XattrSelection::None } else { XattrSelection::All },
            hard_links: !self.no_links,
            holes: false,
            ..TarOptions::default()
        };
        let skipped = std::cell::Cell::new(false);
        let tell = |path: &[u8], omission: &TarOmission| {
            let path = Shown(path.strip_prefix(b"/").unwrap_or(path));
            say!("WARNING: {path}: {omission}");
            say!("Skipping {path}");
            if !matches!(omission, TarOmission::Socket) || self.no_skip {
                skipped.set(true);
            }
        };
        let mut failure = None;
        let ended = Output::run(|output| {
            let parts = if paths.is_empty() { Parts::All } else { Parts::Below(paths) };
            match write_tar(&image, parts, output, &tar, &tell, &cancel) {
                Ok(_) => Ok(0),
                Err(TarError::Output(error)) => Err(error),
                Err(error) => {
                    failure = Some(error);
                    Ok(FAILED)
                }
            }
        });
        match (ended, failure) {
            (_, Some(error)) => PROGRAM.failed(&error.to_string()),
            (Ok(_), None) if skipped.get() => PROGRAM.failed("the archive is not complete"),
            (ended, None) => ended,
        }
    }
}
