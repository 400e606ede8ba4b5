//! `fsck.erofs`: its options and its output format.

use std::{
    ffi::OsString,
    io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use floe::{
    CheckOptions, ExtractError, ExtractEvent, ExtractOmission, ExtractOptions, ExtractPart, FileType, Finding, Format,
    Image, ImageFiles, Nid, OpenError, Parts, SeekTarget, Severity, SuperblockChecksum, XattrSelection, check_files,
    extract,
};
use floe_sandbox::Mode;
use floe_sync::Mutex;

use super::erofs_tool::{ErofsTool, Options, Wanted, number};
use crate::{
    cancellation,
    confinement::{self, Opened, Target},
    fail::{Exit, Fail},
    fake,
};
use floe_image::{Shown, ShownName};

pub(super) const HELP: &str = "\
Usage: fsck.erofs [OPTIONS] IMAGE
Check an EROFS image, or extract it. This is floe under the name of fsck.erofs.

 -d<0-9>                verbosity: 0 nothing, 2 faults, 3 also success
 -p                     print the compression ratio (with -d3)
 --device=X             an extra device, in the order of the device table
 --extract[=X]          decode all data; with X, extract to X
 --offset=#             offset of the image in bytes
 --nid=#, --path=X      check only this, or extract only what lies below this directory
 --sandbox=off          do not confine the process that reads the image
 --no-sbcrc             ignore a wrong checksum of the superblock
 --[no-]xattrs          extract extended attributes (not by default)
 -a, -A, -p, -y         have no effect
 --force                permit extraction to /
 --overwrite            replace files that exist, and empty directories in the place of files
 --[no-]preserve        --[no-]preserve-owner and --[no-]preserve-perms
 --[no-]preserve-owner  keep owners (the default for root)
 --[no-]preserve-perms  keep modes, ignoring the umask (the default for root)
 -h, --help, -V, --version
";

/// The default verbosity: faults and warnings are printed.
const VERBOSITY: u64 = 2;

/// From this verbosity on, success is reported too.
const VERBOSITY_INFORMED: u64 = 3;

/// The message for images of another format.
const NO_EROFS: &str = "cannot find valid erofs superblock";

struct Order {
    wanted: Wanted,
    verbosity: u64,
    decode: bool,
    ratio: bool,
    target: Option<PathBuf>,
    root: Option<Root>,
    to_root: bool,
    extract: ExtractOptions,
}

/// The inode at which to start instead of the root.
enum Root {
    Nid(u64),
    Path(OsString),
}

/// Runs the program.
///
/// # Errors
/// Signal handlers cannot be installed.
pub(super) fn run(arguments: &[OsString], sandbox: Mode) -> Result<u8, Fail> {
    let tool = ErofsTool { name: "fsck.erofs", help: HELP, usage_exit: 1 };
    let is_root = rustix::process::geteuid().is_root();
    let mut order = Order {
        wanted: Wanted { sandbox, ..Wanted::default() },
        verbosity: VERBOSITY,
        decode: false,
        ratio: false,
        target: None,
        root: None,
        to_root: false,
        extract: ExtractOptions {
            owners: is_root,
            modes: is_root,
            xattrs: XattrSelection::None,
            ..ExtractOptions::default()
        },
    };
    let mut options = Options::new(arguments, "hVpaAy");
    while let Some(option) = options.next() {
        match option.name.as_str() {
            "d" => match options.value(&option).as_deref().and_then(number).filter(|level| *level <= 9) {
                Some(level) => order.verbosity = level,
                None => return tool.wrong("invalid debug level"),
            },
            "p" => order.ratio = true,
            "a" | "A" | "y" => {}
            "extract" => {
                order.decode = true;
                order.target = option.attached().map(PathBuf::from);
            }
            "nid" => match options.value(&option).as_deref().and_then(number) {
                Some(nid) => order.root = Some(Root::Nid(nid)),
                None => return tool.wrong("invalid NID"),
            },
            "path" => order.root = options.value(&option).map(Root::Path),
            "no-sbcrc" => order.wanted.superblock_checksum = SuperblockChecksum::Ignored,
            "force" => order.to_root = true,
            "overwrite" => order.extract.force = true,
            "xattrs" => order.extract.xattrs = XattrSelection::All,
            "no-xattrs" => order.extract.xattrs = XattrSelection::None,
            "preserve" => (order.extract.owners, order.extract.modes) = (true, true),
            "no-preserve" => (order.extract.owners, order.extract.modes) = (false, false),
            "preserve-owner" => order.extract.owners = true,
            "no-preserve-owner" => order.extract.owners = false,
            "preserve-perms" => order.extract.modes = true,
            "no-preserve-perms" => order.extract.modes = false,
            _ => match order.wanted.take(&option, &mut options) {
                Ok(true) => {}
                Ok(false) => return tool.standard(&option),
                Err(message) => return tool.wrong(&message),
            },
        }
    }
    let [image] = match <[OsString; 1]>::try_from(options.into_operands()) {
        Ok(operands) => operands,
        Err(operands) => return tool.wrong_operands(&operands, "IMAGE"),
    };
    if order.target.as_deref().is_some_and(|target| target == Path::new("/")) && !order.to_root {
        return tool.wrong("--extract=/ needs --force too");
    }
    if order.target.is_none() {
        fake::leave();
    } else if let Some(reason) = fake::refusal() {
        return tool.failed(&reason, 1);
    }
    let cancel = cancellation::on_signals()?;
    match &order.target {
        Some(target) => extract_image(&tool, Path::new(&image), target, &order, &cancel),
        None => check_image(&tool, Path::new(&image), &order, &cancel),
    }
}

fn check_image(tool: &ErofsTool, image: &Path, order: &Order, cancel: &AtomicBool) -> Result<u8, Fail> {
    if order.root.is_some() {
        return check_below(tool, image, order, cancel);
    }
    let has_errors = Mutex::new(false);
    let tell = |finding: &Finding| {
        let is_ignored = order.wanted.superblock_checksum == SuperblockChecksum::Ignored
            && finding.rule.contains("superblock checksum");
        if finding.severity == Severity::Warning || is_ignored {
            return;
        }
        let mut has_errors = has_errors.lock();
        *has_errors = true;
        if order.verbosity > 0 {
            let path = finding.path.as_deref().map(|path| format!(" @ {}", Shown(path))).unwrap_or_default();
            tool.say(&format!("{}{}{path}", finding.rule, finding.place));
        }
    };
    let options = CheckOptions { data: order.decode, ..CheckOptions::default() };
    let engine_options = order.wanted.open_options().engine;
    let files = order.wanted.open_files(image, confinement::reading())?;
    let summary = match files.and_then(|files| check_files(files, &engine_options, &options, &tell, cancel)) {
        Ok(summary) if summary.format == Format::Erofs => summary,
        Ok(_) => return tool.failed(NO_EROFS, 1),
        Err(error) => return tool.unopened(error),
    };
    if summary.is_cancelled {
        return interrupted(tool);
    }
    if has_errors.into_inner() {
        if order.verbosity > 0 {
            tool.say("Found some filesystem corruption");
        }
        return Ok(1);
    }
    say_all_is_well(order, (summary.stored_bytes, summary.decoded_bytes));
    Ok(0)
}

fn extract_image(
    tool: &ErofsTool,
    image: &Path,
    target: &Path,
    order: &Order,
    cancel: &AtomicBool,
) -> Result<u8, Fail> {
    let mut options = order.extract.clone();
    let mut target = Target::new(target);
    let policy = confinement::extracting(&mut target, &options);
    let (files, tree) = Opened::split(order.wanted.open_confined(image, policy)?);
    let image = match open(tool, files, order) {
        Ok(image) => image,
        Err(exit) => return exit,
    };
    match find(&image, order) {
        Ok(root) => options.root = root,
        Err(message) => return tool.failed(&message, 1),
    }
    // The target was confined before the type of the inode could be read.
    if let Some(Ok(attr)) = options.root.map(|root| image.attr(root))
        && attr.file_type != FileType::Directory
    {
        return tool.failed("--extract=X extracts only a directory; dump.erofs --cat prints a file", 1);
    }
    let target = target.keep(tree);
    let omissions = Omissions::new(order);
    let tell = |event: ExtractEvent<'_>| match event {
        ExtractEvent::Warning(warning) if order.verbosity > 0 => {
            tool.say(&format!("{} @ {}", warning.cause, Shown(&warning.path)));
        }
        ExtractEvent::Omitted { path, parts, .. } => parts.iter().for_each(|part| omissions.add(path, part)),
        _ => {}
    };
    match extract(&image, Parts::All, target, &options, &tell, cancel) {
        Ok(summary) if summary.failures == 0 && !omissions.are_errors() => {
            say_all_is_well(order, (0, 0));
            Ok(0)
        }
        Ok(_) => tool.failed("Failed to extract filesystem", 1),
        Err(ExtractError::Cancelled) => interrupted(tool),
        Err(error) => tool.failed(&error.to_string(), 1),
    }
}

/// Reports what an extraction left out. The original takes devices and extended attributes for errors, unless a user other
/// than root lacks the privilege.
struct Omissions {
    verbosity: u64,
    is_root: bool,
    has_named_root: AtomicBool,
    are_errors: AtomicBool,
}

impl Omissions {
    fn new(order: &Order) -> Self {
        Self {
            verbosity: order.verbosity,
            is_root: rustix::process::geteuid().is_root(),
            has_named_root: AtomicBool::new(false),
            are_errors: AtomicBool::new(false),
        }
    }

    fn add(&self, path: &[u8], ExtractOmission { part, error }: &ExtractOmission) {
        let is_denied = !self.is_root && error.kind() == io::ErrorKind::PermissionDenied;
        let (what, is_error) = match part {
            ExtractPart::Entry => ("failed to create special file".to_owned(), self.is_root),
            ExtractPart::Owner => ("failed to change ownership".to_owned(), false),
            ExtractPart::Mode => ("failed to set permissions".to_owned(), false),
            ExtractPart::Time => ("failed to set times".to_owned(), false),
            ExtractPart::HardLink => ("copied instead of linked".to_owned(), false),
            ExtractPart::Xattr(name) if is_denied && !XattrSelection::User.includes(name) => {
                if self.has_named_root.swap(true, Relaxed) {
                    return;
                }
                (format!("only root may set xattr {}; more of these are not reported", Shown(name)), false)
            }
            ExtractPart::Xattr(name) => (format!("failed to set xattr {}", Shown(name)), true),
            _ => ("incomplete".to_owned(), false),
        };
        self.are_errors.fetch_or(is_error, Relaxed);
        let level = if is_error { "E" } else { "W" };
        if self.verbosity >= if is_error { 1 } else { VERBOSITY } {
            say!("<{level}> erofs: {what}: {error} @ {}", Shown(path));
        }
    }

    fn are_errors(&self) -> bool {
        self.are_errors.load(Relaxed)
    }
}

/// Reads everything below a directory.
fn check_below(tool: &ErofsTool, image: &Path, order: &Order, cancel: &AtomicBool) -> Result<u8, Fail> {
    let files = order.wanted.open_files(image, confinement::reading())?;
    let image = match open(tool, files, order) {
        Ok(image) => image,
        Err(exit) => return exit,
    };
    let root = match find(&image, order) {
        Ok(root) => root.unwrap_or_else(|| image.root()),
        Err(message) => return tool.failed(&message, 1),
    };
    let (mut has_errors, mut piece) = (false, vec![0; 1 << 20]);
    for entry in image.walk_from(root, b"") {
        let read = entry.map_err(|failed| (failed.path, failed.error)).and_then(|entry| {
            if !order.decode || entry.attr.file_type != FileType::Regular {
                return Ok(());
            }
            read_data(&image, entry.attr.nid, &mut piece, cancel).map_err(|error| (entry.path, error))
        });
        if cancel.load(Relaxed) {
            return interrupted(tool);
        }
        if let Err((path, error)) = read {
            has_errors = true;
            if order.verbosity > 0 {
                tool.say(&format!("{error} @ {}", Shown(&path)));
            }
        }
    }
    if has_errors {
        return tool.failed("Found some filesystem corruption", 1);
    }
    say_all_is_well(order, (0, 0));
    Ok(0)
}

/// Reads a file without its holes, until it ends or `cancel` is set.
fn read_data(image: &Image, nid: Nid, piece: &mut [u8], cancel: &AtomicBool) -> Result<(), floe::Error> {
    let mut position = 0;
    while !cancel.load(Relaxed)
        && let Some(start) = image.file_system().seek(nid, position, SeekTarget::Data)?
    {
        let len = image.read_at(nid, start, piece)?;
        position = start + len.max(1) as u64;
    }
    Ok(())
}

fn interrupted(tool: &ErofsTool) -> Result<u8, Fail> {
    tool.failed("interrupted", Exit::CheckCancelled.code())
}

/// The image. If it cannot be opened, this is reported, and the error is the result of the program.
fn open(tool: &ErofsTool, files: Result<ImageFiles, OpenError>, order: &Order) -> Result<Image, Result<u8, Fail>> {
    match files.and_then(|files| Image::of(files, &order.wanted.open_options())) {
        Ok(image) if image.format() == Format::Erofs => Ok(image),
        Ok(_) => Err(tool.failed(NO_EROFS, 1)),
        Err(error) => Err(tool.unopened(error)),
    }
}

fn find(image: &Image, order: &Order) -> Result<Option<Nid>, String> {
    match &order.root {
        None => Ok(None),
        Some(Root::Nid(nid)) => Ok(Some(Nid(*nid))),
        Some(Root::Path(path)) => {
            let found = image.resolve_link(path.as_encoded_bytes());
            found.map(Some).map_err(|_| format!("failed to lookup {}", path.shown()))
        }
    }
}

fn say_all_is_well(order: &Order, (stored, decoded): (u64, u64)) {
    if order.verbosity < VERBOSITY_INFORMED {
        return;
    }
    say!("<I> erofs: No errors found");
    if order.ratio && decoded > 0 {
        say!("<I> erofs: Compression ratio: {:.2}(%)", 100.0 * stored as f64 / decoded as f64);
    }
}
