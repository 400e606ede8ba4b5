//! `floe record`: writes down what a launch reads of a mounted image.

mod launch;

use std::{
    collections::{HashMap, HashSet},
    ffi::OsString,
    fs,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::ExitStatus,
    sync::{Arc, Mutex, PoisonError},
};

use clap::Args;
use floe::{ByteRange, Image, Nid};
use floe_fuse::{Access, Detach, Mount, MountEntry, MountTable, Mountpoint};
use floe_mkfs::{Profile, ProfileRange};

use self::launch::Launch;
use crate::{
    exit::Exit,
    fail::Fail,
    mount_options::{Settings, Strictness},
    remote,
};

/// The most reads that are kept.
const READS_MAX: usize = 1 << 20;

/// Record which parts of an image a command reads, in their order
///
/// The image is mounted once more over DIR while the command runs, so that nothing is in memory yet and each first read
/// is seen; then DIR is as before. SIGINT, SIGTERM and SIGHUP end the command, as one ends a server, and what it has read so
/// far is recorded; 5 seconds later, or at a second signal, it is killed. With `floe mkfs --profile` an image has these parts in front.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    floe record /mnt/app -- /mnt/app/bin/app --version\n  \
    floe record /mnt/app --image app.erofs --output app.profile -- /mnt/app/bin/app\n\n\
Exit codes: those of the command; 1 where it cannot be recorded.")]
pub(crate) struct Arguments {
    /// The directory on which the image is mounted, or an empty one with --image
    #[arg(value_name = "DIR")]
    directory: PathBuf,

    /// The image [default: the one that is mounted on DIR]
    #[arg(long, value_name = "FILE")]
    image: Option<PathBuf>,

    /// Where the profile goes
    #[arg(long, value_name = "FILE", default_value = "floe.profile")]
    output: PathBuf,

    /// Options of floe mount, for images that need them to be read
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<String>,

    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// The reads that the kernel asked for, each byte of a file once.
type Reads = Arc<Mutex<Vec<(Nid, ByteRange)>>>;

/// Runs the command.
///
/// # Errors
/// There is no image to be found, it cannot be mounted, the command cannot be run, or the profile cannot be written.
pub(crate) fn run(arguments: Arguments) -> Result<u8, Fail> {
    let directory = fs::canonicalize(&arguments.directory)
        .map_err(|error| Fail::failed(format!("{}: {error}", arguments.directory.display())))?;
    let table = MountTable::read().map_err(|error| Fail::failed(format!("the table of mounts: {error}")))?;
    let covered = table.on(&directory);
    let path = match arguments.image {
        Some(image) => image,
        None => mounted_image(&directory, covered)?,
    };
    let mut settings = Settings::default();
    if let Some(covered) = covered {
        // The launch may and must not do what it may and must not on the mount that is covered.
        settings.mount.flags = covered.flags;
        settings.mount.access = Some(if covered.lets_others_in { Access::All } else { Access::Owner });
        settings.mount.checks_permissions = covered.checks_permissions;
    }
    for list in &arguments.options {
        settings.take_list(list, Strictness::User)?;
    }
    // What is read before anybody asks would hide what is asked for.
    settings.open.engine.read_around = false;
    let image = remote::open_image(&path, &settings.open)?;
    let reads = Reads::default();
    let sink = Arc::clone(&reads);
    let mut options = settings.mount;
    options.source = remote::without_credentials(&path).to_string_lossy().into_owned();
    options.read_ahead_bytes = Some(0);
    options.reads = Some(Arc::new(move |nid, offset, len| {
        let mut reads = sink.lock().unwrap_or_else(PoisonError::into_inner);
        if reads.len() < READS_MAX {
            reads.push((nid, ByteRange::new(offset, len.into())));
        }
    }));
    // Before the mount, so that no signal leaves it behind.
    let launch = Launch::prepare()?;
    let mount = Mount::new(image.reader().clone(), Mountpoint::Directory(directory), &options)?;
    if let Some(refusal) = mount.read_ahead_refusal() {
        eprintln!("floe: the kernel reads ahead, and more is recorded than is needed: {refusal}");
    }
    let status = launch.run(&arguments.command);
    if let Err(error) = mount.unmounter().unmount(Detach::Never) {
        eprintln!("floe: {error}; it goes when nobody uses it any more");
        mount.unmounter().unmount(Detach::Lazily)?;
    }
    drop(mount);
    let status = status?;
    let reads = std::mem::take(&mut *reads.lock().unwrap_or_else(PoisonError::into_inner));
    let profile = profile(&image, &reads)?;
    let written = fs::write(&arguments.output, profile.to_text());
    written.map_err(|error| Fail::failed(format!("{}: {error}", arguments.output.display())))?;
    let bytes: u64 = profile.ranges().iter().map(|range| range.range.len()).sum();
    eprintln!(
        "floe: {} ranges with {} KiB are in {}; floe mkfs --profile puts them first",
        profile.ranges().len(),
        bytes >> 10,
        arguments.output.display()
    );
    Ok(code_of(status))
}

/// The image that is mounted on a directory, by Floe or by the kernel.
fn mounted_image(directory: &Path, entry: Option<&MountEntry>) -> Result<PathBuf, Fail> {
    let advice = "name the image with --image";
    let entry = entry.ok_or_else(|| Fail::usage(format!("nothing is mounted on {}: {advice}", directory.display())))?;
    let source = entry.image().to_owned();
    if source.is_file() {
        return Ok(source);
    }
    Err(Fail::usage(format!("the image that is mounted on {} cannot be found: {advice}", directory.display())))
}

/// A shell's code for how a command ended.
fn code_of(status: ExitStatus) -> u8 {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    u8::try_from(code).unwrap_or(Exit::Failed.code())
}

/// The reads with the paths of the files.
fn profile(image: &Image, reads: &[(Nid, ByteRange)]) -> Result<Profile, Fail> {
    let mut wanted: HashSet<Nid> = reads.iter().map(|(nid, _)| *nid).collect();
    let mut paths = HashMap::new();
    let mut sizes = HashMap::new();
    let mut walk = image.walk();
    while !wanted.is_empty()
        && let Some(entry) = walk.next()
    {
        let entry = entry.map_err(|failed| Fail::failed(format!("the image: {}", failed.error)))?;
        if wanted.remove(&entry.attr.nid) {
            sizes.insert(entry.attr.nid, entry.attr.size);
            paths.insert(entry.attr.nid, entry.path);
        }
    }
    let ranges = reads.iter().filter_map(|(nid, range)| {
        let range = range.intersection(ByteRange::new(0, *sizes.get(nid)?));
        let path = paths.get(nid)?.clone();
        (!range.is_empty()).then_some(ProfileRange { path, range })
    });
    Ok(Profile::new(ranges))
}
