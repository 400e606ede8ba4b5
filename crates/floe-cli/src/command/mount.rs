//! `floe mount`: mounts an image and serves it.

mod signalled_end;
mod through_service;
mod walk;

use std::{
    path::{Path, PathBuf},
    process,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use floe::Offset;
use floe_fuse::MountError;
use floe_keeper::{Detach, MountEntry, MountTable, RingPermission, unmount};
use floe_mount::{
    Ended, Request,
    control::ServingProcess,
    daemon::{self, Report, Role},
    handover::is_upgrade,
    launch::ProfileChoice,
    options::{self, ServiceChoice, Settings, Strictness},
    quantity,
};
use rustix::{fs::statfs, io::Errno};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};

use self::signalled_end::SignalledEnd;
pub(crate) use self::{
    through_service::mount_through_service,
    walk::{Arguments as WalkArguments, WALK_COMMAND, run as walk},
};
use crate::{
    cancellation::unless_ignored,
    confinement::SandboxArguments,
    fail::{Exit, Fail},
    output::{Output, remark},
    remote::RemoteArguments,
};

/// Mount an image on a directory until it is unmounted or interrupted
#[derive(clap::Args)]
#[command(override_usage = "floe mount [OPTIONS] IMAGE DIR", after_help = format!("{}\n{HELP}", options::help()))]
pub(crate) struct Arguments {
    /// The image: a file, a block device, or a URL (https://, s3://, gs://, az://, oci://)
    #[arg(value_name = "IMAGE")]
    image: Option<PathBuf>,
    /// The directory to mount on; /dev/fd/N for an open descriptor of /dev/fuse
    #[arg(value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Serve in the background; the command returns when the mount works
    #[arg(short = 'd', long)]
    daemon: bool,
    #[arg(long, value_name = "SIZE|auto", value_parser = offset, help = options::about("offset"))]
    offset: Option<Offset>,
    #[arg(long, value_name = "FILE", help = options::about("device"))]
    device: Vec<PathBuf>,
    #[arg(long, value_name = "DIR", help = options::about("device-directory"))]
    device_directory: Option<PathBuf>,
    /// Mount through the service that floe serve runs, and return: -o service=on
    #[arg(long)]
    service: bool,
    /// Record the first launch, and replay it in later mounts: -o profile=learn
    #[arg(long)]
    learn: bool,
    /// Options as in fstab: key=value,…; "help" lists them
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<String>,
    #[command(flatten)]
    sandbox: SandboxArguments,
    #[command(flatten)]
    remote: RemoteArguments,
}

const HELP: &str = "\
SIGINT, SIGTERM and SIGHUP unmount the image, unless they were ignored from the start (nohup).
A mount in use disappears from the tree but still serves its current users. A mount that another
mount covers is served until it is uncovered. A second signal ends the program at once.

Exit codes:
  0  it was unmounted; with --daemon: the mount works
  1  it could not be mounted
  2  wrong usage
  3  the file is not an image, or the image is broken or uses unsupported features";

/// Runs the command.
///
/// # Errors
/// The image cannot be mounted.
pub(crate) fn run(arguments: Arguments) -> Result<u8, Fail> {
    for list in &arguments.options {
        match list.as_str() {
            "help" => return Output::print(options::help()),
            "help=markdown" => return Output::print(options::page()),
            _ => {}
        }
    }
    let mut settings = Settings { sandbox: arguments.sandbox.mode(), ..Settings::default() };
    for list in &arguments.options {
        settings.take_list(list, Strictness::User)?;
    }
    if let Some(offset) = arguments.offset {
        settings.open.offset = offset;
    }
    if arguments.learn {
        if !matches!(settings.profile, ProfileChoice::Image | ProfileChoice::Learn) {
            return Err(Fail::usage("--learn chooses the place of its profile: omit profile="));
        }
        settings.profile = ProfileChoice::Learn;
    }
    settings.open.devices.extend(arguments.device);
    if arguments.device_directory.is_some() {
        settings.open.device_directory = arguments.device_directory;
    }
    arguments.remote.apply(&mut settings.open.remote);
    let remote_options = arguments.remote.list();
    let (Some(image), Some(directory)) = (arguments.image, arguments.directory) else {
        return Err(Fail::usage("give an image and a directory: floe mount IMAGE DIR; see --help"));
    };
    if arguments.service {
        settings.service = ServiceChoice::On;
    }
    let request = Request { in_background: arguments.daemon, ..Request::new(image, directory, settings) };
    let lists: Vec<String> = arguments.options.into_iter().chain(remote_options).collect();
    match mount_through_service(&request, &lists, true)? {
        Some(code) => Ok(code),
        None => fulfil(request, true),
    }
}

/// Mounts and serves the image until it is unmounted, in the background if requested. The process in the foreground says that the
/// mount works if it `says_ready`. Returns the exit code.
///
/// # Errors
/// The image cannot be mounted.
pub(crate) fn fulfil(request: Request, says_ready: bool) -> Result<u8, Fail> {
    let request = Request { remarks: Arc::new(|message| say!("floe: {message}")), ..request };
    let in_background = request.in_background || is_upgrade();
    RingPermission::restore();
    let unproven = UnprovenMount::watch(&request.directory);
    let role = in_background.then(|| daemon::start(request.files())).transpose();
    if matches!(role, Err(_) | Ok(Some(Role::Failed(_)))) {
        unproven.clear();
    }
    match role? {
        None => serve(request, None, says_ready).map(Exit::code),
        Some(Role::Background(report)) => serve(request, Some(report), says_ready).map(Exit::code),
        Some(Role::Failed(code)) => Ok(code),
        Some(Role::Foreground(message)) => {
            if says_ready {
                remark(format_args!("{message}\n"));
            }
            Ok(Exit::Done.code())
        }
    }
}

/// Serves the image in this process. Says or reports that the mount works.
fn serve(request: Request, report: Option<Report>, says_ready: bool) -> Result<Exit, Fail> {
    let confined = request.prepare()?.confine()?;
    // From here on, signals are queued until the mount exists, so that no signal leaves a mount without a process.
    let signals = Signals::new(unless_ignored(&[SIGINT, SIGTERM, SIGHUP]));
    let signals = signals.map_err(|error| Fail::failed(format!("cannot install signal handlers: {error}")))?;
    let mut mounted = confined.mount()?;
    SignalledEnd::of(&mounted).start(signals).map_err(MountError::Threads)?;
    let says_ready = says_ready && !mounted.logs_to_output();
    mounted.announce(|message| {
        match report {
            Some(report) => report.works(message)?,
            None if says_ready => remark(format_args!("{message}\n")),
            None => {}
        }
        Ok(())
    })?;
    match mounted.wait()? {
        Ended::Unmounted => Ok(Exit::Done),
        // Returning from `main` would not end threads that wait for the source.
        Ended::HandedOver | Ended::Stuck => process::exit(Exit::Done.code().into()),
    }
}

/// Parses the offset of an image: a number of bytes, or `auto`.
///
/// # Errors
/// The text is neither.
pub(crate) fn offset(text: &str) -> Result<Offset, String> {
    match quantity::bytes(text) {
        Ok(at) => Ok(Offset::At(at)),
        Err(_) if text == "auto" => Ok(Offset::Auto),
        Err(_) => Err(format!("'{text}' is neither a number of bytes nor 'auto'")),
    }
}

/// How long the keeper of the failed process has to unmount. It may have to wait until the threads of that process have ended.
const KEEPER_TIME_MAX: Duration = Duration::from_secs(2);

/// The pause between two looks at the mount.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// The directory of a mount that the background process is to make. The process in the foreground is not confined, so it can
/// unmount if both the background process and its keeper were killed.
struct UnprovenMount {
    /// `None` if a mount that a program serves was there before.
    directory: Option<PathBuf>,
}

impl UnprovenMount {
    /// Notes which mount is on the directory before the background process starts.
    fn watch(directory: &Path) -> Self {
        Self { directory: (!has_served_mount(directory)).then(|| directory.to_owned()) }
    }

    /// Waits until the keeper of the failed process has unmounted, and otherwise unmounts what is left if it is dead.
    fn clear(&self) {
        RingPermission::restore();
        let Some(directory) = &self.directory else { return };
        let until = Instant::now() + KEEPER_TIME_MAX;
        // The kernel may end the connection of a killed process a moment after the process.
        while has_served_mount(directory) && Instant::now() < until {
            thread::sleep(LOOK_INTERVAL);
        }
        if is_dead(directory) {
            // The failure was reported already.
            let _ = unmount(directory, Detach::Lazily);
        }
    }
}

/// Whether the topmost mount on the directory is one that a program serves. Does not access the mount.
fn has_served_mount(directory: &Path) -> bool {
    has_mount(directory, MountEntry::is_served)
}

/// Whether the mount on the directory is one whose program has ended.
fn is_dead(directory: &Path) -> bool {
    let is_dead_fuse = || statfs(directory).is_err_and(|error| error == Errno::NOTCONN);
    // The kernel's EROFS answers from its cache, whether or not the image behind it is served.
    let is_dead_front = || has_mount(directory, MountEntry::is_front) && ServingProcess::of(directory).is_none();
    has_served_mount(directory) && (is_dead_fuse() || is_dead_front())
}

fn has_mount(directory: &Path, is_meant: impl Fn(&MountEntry) -> bool) -> bool {
    let table = MountTable::read().unwrap_or_default();
    table.find(directory).is_ok_and(|entry| entry.is_some_and(is_meant))
}
