//! `floe mount`: mounts an image and serves it.

mod signalled_end;
mod unproven_mount;

use std::{
    fs::File,
    io::{self, Write},
    mem,
    path::{Path, PathBuf},
    process,
    sync::Arc,
    time::{Duration, Instant},
};

use floe::{Image, Offset};
use floe_fuse::{Detach, Ended, Mount, MountError, Mountpoint, Rings};
use floe_image::ShownName;
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};

use self::{signalled_end::SignalledEnd, unproven_mount::UnprovenMount};
use crate::{
    confinement::{self, Opened, SandboxArguments},
    control,
    daemon::{self, Report, Role},
    ending_signals::unless_ignored,
    exit::Exit,
    fail::Fail,
    front::{FrontReport, Fronted},
    handover::{Giver, SealedInvocation, ServiceManager, State, StateFile, Taken, identity, is_upgrade},
    idle::unmount_when_idle,
    launch::{LaunchPlan, Mounted, ProfileChoice},
    mount_log::MountLog,
    mount_needs::MountNeeds,
    mount_options::{self, Settings, Strictness},
    output::{Output, remark},
    quantity,
    remote::{self, RemoteArguments},
    status,
    transport::{Continuity, TransportPlan},
};

/// Mount an image on a directory until it is unmounted or interrupted
#[derive(clap::Args)]
#[command(override_usage = "floe mount [OPTIONS] IMAGE DIR", after_help = format!("{}\n{HELP}", mount_options::help()))]
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
    #[arg(long, value_name = "SIZE|auto", value_parser = offset, help = mount_options::about("offset"))]
    offset: Option<Offset>,
    #[arg(long, value_name = "FILE", help = mount_options::about("device"))]
    device: Vec<PathBuf>,
    #[arg(long, value_name = "DIR", help = mount_options::about("device-directory"))]
    device_directory: Option<PathBuf>,
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

/// A request to mount an image.
pub(crate) struct Order {
    pub(crate) image: PathBuf,
    pub(crate) directory: PathBuf,
    pub(crate) settings: Settings,
    pub(crate) in_background: bool,
    /// Unmount after this time without use.
    pub(crate) idle: Option<Duration>,
    /// Whether the process in the foreground says that the mount works.
    pub(crate) says_ready: bool,
    /// A pipe that gets a message when the mount works.
    pub(crate) notify_pipe: Option<PathBuf>,
}

impl Order {
    /// A mount in the foreground that stays until it is unmounted.
    pub(crate) fn new(image: impl Into<PathBuf>, directory: impl Into<PathBuf>, settings: Settings) -> Self {
        let (image, directory) = (image.into(), directory.into());
        Self { image, directory, settings, in_background: false, idle: None, says_ready: true, notify_pipe: None }
    }

    /// The files that are read.
    fn files(&self) -> impl Iterator<Item = &Path> {
        let profile = match &self.settings.profile {
            ProfileChoice::File(path) => Some(path),
            _ => None,
        };
        [&self.image].into_iter().chain(&self.settings.open.devices).chain(profile).map(PathBuf::as_path)
    }
}

/// Runs the command.
///
/// # Errors
/// The image cannot be mounted.
pub(crate) fn run(arguments: Arguments) -> Result<u8, Fail> {
    for list in &arguments.options {
        match list.as_str() {
            "help" => return Output::print(mount_options::help()),
            "help=markdown" => return Output::print(mount_options::page()),
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
        settings.profile = ProfileChoice::Learn;
    }
    settings.open.devices.extend(arguments.device);
    if arguments.device_directory.is_some() {
        settings.open.device_directory = arguments.device_directory;
    }
    arguments.remote.apply(&mut settings.open.remote);
    let (Some(image), Some(directory)) = (arguments.image, arguments.directory) else {
        return Err(Fail::usage("give an image and a directory: floe mount IMAGE DIR; see --help"));
    };
    let in_background = arguments.daemon;
    fulfil(Order { in_background, ..Order::new(image, directory, settings) })
}

/// Mounts and serves the image until it is unmounted, in the background if requested. Returns the exit code.
///
/// # Errors
/// The image cannot be mounted.
pub(crate) fn fulfil(order: Order) -> Result<u8, Fail> {
    let in_background = order.in_background || is_upgrade();
    Rings::restore_permission();
    let unproven = UnprovenMount::watch(&order.directory);
    let role = in_background.then(|| daemon::start(order.files(), order.says_ready)).transpose();
    if matches!(role, Err(_) | Ok(Some(Role::Foreground(1..)))) {
        unproven.clear();
    }
    match role? {
        None => serve(order, None).map(Exit::code),
        Some(Role::Background(report)) => serve(order, Some(report)).map(Exit::code),
        Some(Role::Foreground(code)) => Ok(code),
    }
}

fn serve(order: Order, report: Option<Report>) -> Result<Exit, Fail> {
    let Order { image: path, directory, mut settings, idle, says_ready, notify_pipe, in_background } = order;
    // The service manager knows a process in the foreground only.
    let mut manager = if in_background && !is_upgrade() { None } else { ServiceManager::connect() };
    let invocation = SealedInvocation::of_this_process(manager.is_some()).ok();
    let mut taken = Taken::find(&directory, manager.as_ref())?;
    // A mount may have no server until this process has taken it over, so nothing here may access it.
    let (mountpoint, shown) = match &taken {
        Some(taken) => (None, taken.directory().to_owned()),
        None => {
            let mountpoint = Mountpoint::find(&directory)?;
            let shown = match &mountpoint {
                // The target of `/dev/fd/N` is the device.
                Mountpoint::Descriptor(_) => directory.clone(),
                Mountpoint::Directory(directory) => directory.path().to_owned(),
            };
            (Some(mountpoint), shown)
        }
    };
    if settings.subdirectory.is_some() {
        if matches!(settings.profile, ProfileChoice::File(_) | ProfileChoice::Learn) {
            return Err(Fail::usage("a profile is of the whole image: omit subdir=, or profile= and --learn"));
        }
        settings.profile = ProfileChoice::Off;
    }
    if let Some(taken) = &taken {
        settings.tune(&taken.state.tuned);
        // The launch happened before the takeover.
        settings.profile = ProfileChoice::Off;
    }
    let shown_path = absolute(&path);
    let source = settings.source.take();
    settings.mount.source = source.unwrap_or_else(|| shown_path.to_string_lossy().into_owned());
    let mut log = MountLog::open(&shown_path, &shown, report.is_some());
    remote::raise_deadline(&path, &mut settings);
    let continuity = match (&taken, &manager) {
        (Some(_), _) => Continuity::TakenOver,
        (None, Some(_)) => Continuity::Managed,
        (None, None) => Continuity::Unneeded,
    };
    let datagrams = || {
        let to_manager = manager.as_mut().map(ServiceManager::relay).transpose()?;
        Ok([log.relay(), to_manager].into_iter().flatten().collect())
    };
    let pipe = notify_pipe.as_deref();
    let mut needs =
        MountNeeds::prepare(&path, mountpoint.as_ref(), &mut settings, pipe, taken.as_ref(), continuity, datagrams)?;
    let log = Arc::new(log);
    settings.mount.faults = Some(log.faults());
    // The profile of a launch is made from the image, after the unmount at the latest.
    settings.mount.closes_image = settings.profile != ProfileChoice::Learn;
    // After the start of the keeper, which must share no memory with the rings.
    let transport = TransportPlan::new(settings.transport, &mut settings.mount, continuity, settings.front)?;
    needs.policy.calls.rings = settings.mount.rings.is_some();
    let tuned = taken.as_ref().map(|taken| taken.state.tuned.clone()).unwrap_or_default();
    let state_file = match taken.as_mut().and_then(Taken::take_state_file) {
        None if manager.is_some() => StateFile::create().ok(),
        file => file,
    };
    let marks = settings.decode_marks.take().map(|path| {
        let marks = std::fs::OpenOptions::new().write(true).open(&path);
        marks.map_err(|error| Fail::failed(format!("cannot open {}: {error}", path.shown())))
    });
    let marks = marks.transpose()?;
    #[cfg(debug_assertions)]
    crate::compromised::on_a_read(&mut settings.mount);
    let mut policy = mem::take(&mut needs.policy);
    let remote = remote::start(&path, &settings.open.remote)?;
    let launch = LaunchPlan::prepare(&path, &mut settings, remote.as_deref(), &mut policy)?;
    let Opened { files, enforced, remote, .. } =
        confinement::open_from(remote, &path, &settings.open, policy, settings.sandbox)??;
    let mut image = Image::of(files, &settings.open.engine)?;
    if let Some(subdirectory) = &settings.subdirectory {
        image = image.below(subdirectory.as_os_str().as_encoded_bytes()).map_err(|error| {
            Fail::failed(format!("{}: subdir={}: {error}", shown_path.shown(), subdirectory.shown()))
        })?;
    }
    if let Some(marks) = marks {
        image.reader().engine().mark_decodes(marks);
    }
    // From here on, signals are queued until the mount exists, so that no signal leaves a mount without a process.
    let signals = Signals::new(unless_ignored(&[SIGINT, SIGTERM, SIGHUP]));
    let signals = signals.map_err(|error| Fail::failed(format!("cannot install signal handlers: {error}")))?;
    let fronted = match (taken, mountpoint) {
        (Some(taken), _) => {
            let (reader, report) = (image.reader().clone(), taken.state.front.clone());
            Fronted { mount: taken.mount(&image, &settings.mount)?, reader, virtual_image: None, report }
        }
        (None, Some(mountpoint)) => settings.front.mount(&image, mountpoint, &settings.mount)?,
        (None, None) => return Err(Fail::failed("there is nothing to mount on")),
    };
    let Fronted { mount, reader, virtual_image, report: front } = fronted;
    let transport = transport.report(&mount)?;
    if let Some(refusal) = mount.read_ahead_refusal() {
        say!("floe: cannot change the kernel's read-ahead: {refusal}");
    }
    if let Some(refusal) = image.reader().engine().spill_file_refusal() {
        say!("floe: continuing without a spill file: {refusal}; name another directory with -o spill-file=SIZE:DIR");
    }
    let unmounter = mount.unmounter();
    let (abandoner, keeper) = (mount.abandoner(), needs.keeper.clone());
    SignalledEnd { unmounter: unmounter.clone(), abandoner, directory: shown.clone(), keeper }
        .start(signals)
        .map_err(MountError::Threads)?;
    let device = unmounter.device();
    let giver = device.and_then(|device| giver(&mount, &image, device, &front, &shown, tuned, state_file));
    if let (Some(manager), Some((giver, _))) = (&manager, &giver) {
        giver.store(manager);
    }
    let launches = launch.start(Mounted {
        image: image.clone(),
        reader: reader.clone(),
        virtual_image,
        keeper: needs.keeper.clone(),
        requests: mount.request_counts(),
    });
    let source = Arc::new(status::Source {
        image: image.clone(),
        reader,
        path: shown_path,
        devices: image.device_paths().to_vec(),
        mountpoint: shown.clone(),
        device: device.unwrap_or_default(),
        settings: settings.into(),
        front,
        transport,
        requests: mount.request_counts(),
        unmounter: unmounter.clone(),
        launches: Arc::clone(&launches),
        started: Instant::now(),
        enforced,
        remote,
        invocation,
        giver,
    });
    let control = device.zip(needs.control.take()).map(|(device, prepared)| {
        let source = Arc::clone(&source);
        control::Server::start(prepared?, device, source)
    });
    if let Some(Err(error)) = &control {
        say!("floe: the mount works, but floe status and floe tune will not: {error}");
    }
    launches.wait_for_replay();
    let says_ready = says_ready && !log.has_standard_output();
    // From the report on, the mount outlives this process. Without a keeper, the signal that ends the mount says so.
    let _ = needs.keeper.note_works();
    say_ready(&remote::without_credentials(&path), &shown, image.format(), report, says_ready).map_err(|error| {
        let _ = unmounter.unmount(Detach::Lazily);
        Fail::failed(format!("the foreground process is gone: {error}"))
    })?;
    log.event(&format!("{} ({}) is mounted on {}", source.path.shown(), image.format(), shown.shown()));
    if let Some(manager) = &manager {
        manager.ready();
    }
    if let Some(idle) = idle {
        unmount_when_idle(image, unmounter, idle);
    }
    if let Some(pipe) = &needs.notify_pipe {
        notify(pipe.path(), true);
    }
    let ended = mount.wait();
    launches.end();
    source.image.reader().engine().close();
    if matches!(ended, Ended::HandedOver) {
        // The control socket and the mount are the other process's now: nothing is cleaned up.
        log.event(&format!("{} is served by another process", shown.shown()));
        drop(needs);
        process::exit(Exit::Done.code().into());
    }
    if let Some(manager) = &manager {
        manager.forget();
    }
    drop(control);
    if let Some(remote) = &source.remote {
        remote.end_and_wait();
    }
    match ended {
        Ended::Unmounted | Ended::HandedOver => {
            log.event(&format!("{} is unmounted", shown.shown()));
            Ok(Exit::Done)
        }
        Ended::Stuck => {
            let image = source.path.shown();
            log.error(&format!("{image}: the source of the image is stuck; waiting requests are abandoned"));
            // Returning from `main` would not end threads that wait for the source.
            process::exit(Exit::Done.code().into())
        }
        Ended::Failed(error) => Err(Fail::failed(format!("lost the connection to the kernel: {error}"))),
    }
}

/// Creates the giver of the mount, with the state that the next process needs. `None` for a front.
fn giver(
    mount: &Mount,
    image: &Image,
    device: (u32, u32),
    front: &FrontReport,
    directory: &Path,
    tuned: Vec<String>,
    file: Option<File>,
) -> Option<(Giver, Arc<StateFile>)> {
    let handover = mount.handover()?;
    let mut state = State::new(identity(image).ok()?, directory, device, handover.terms(), front.clone());
    state.tuned = tuned;
    let state = Arc::new(StateFile::new(state, file).ok()?);
    Some((Giver::new(handover, Arc::clone(&state)), state))
}

/// Reports to the process in the foreground that the mount works, or says it if this is that process.
fn say_ready(
    image: &Path,
    directory: &Path,
    format: floe::Format,
    report: Option<Report>,
    says_ready: bool,
) -> io::Result<()> {
    let message = format!("{} ({format}) is mounted on {}", image.shown(), directory.shown());
    match report {
        Some(report) => report.works(&message),
        None => {
            if says_ready {
                remark(format_args!("{message}\n"));
            }
            Ok(())
        }
    }
}

/// Reports the result to a process that reads from the pipe. Waits for such a process, as squashfuse does.
pub(crate) fn notify(pipe: &Path, works: bool) {
    if is_upgrade() {
        // The reader got its message long ago; opening the pipe would wait for another one.
        return;
    }
    if let Ok(mut pipe) = std::fs::OpenOptions::new().write(true).open(pipe) {
        let _ = pipe.write_all(if works { b"s" } else { b"f" });
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

/// Makes a path absolute, or removes the credentials from a URL.
pub(super) fn absolute(path: &Path) -> PathBuf {
    if remote::is_url(path) {
        return remote::without_credentials(path);
    }
    path.canonicalize().or_else(|_| std::path::absolute(path)).unwrap_or_else(|_| path.to_owned())
}
