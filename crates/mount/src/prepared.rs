//! A mount with all that it needs from outside the sandbox.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use floe::OpenOptions;
use floe_engine::{Priority, reschedule_this_thread, schedule_started_thread, schedule_this_thread};
use floe_fuse::{MountHandles, MountHooks, MountOptions, MountSetup};
use floe_image::ShownName;
use floe_keeper::{Keeper, KeeperSettings, KeeperThread, KeptFiles, Relay, Schedule};
use floe_sandbox::{Access, Calls, Capability, Mode, Policy};

use crate::{
    Request, confinement, control,
    failure::Failure,
    front::Front,
    handover::{SealedInvocation, ServiceManager, StateFile, is_upgrade},
    held::{Held, ReachablePath, SpillDirectory},
    kept_front::KeptFront,
    launch::{GivenLaunch, LaunchPlan, ProfileChoice},
    log::MountLog,
    options::Settings,
    remote::{self, RemoteFiles},
    target::Target,
    transport::{Continuity, TransportPlan},
    users::MountUsers,
};

/// A mount with all that it needs from outside the sandbox: open files, sockets, and the processes that mount and fetch for it.
pub struct Prepared {
    pub(crate) image: PathBuf,
    /// The options to open the image with.
    pub(crate) open: OpenOptions,
    pub(crate) remote: RemoteFiles,
    pub(crate) policy: Policy,
    /// The file for a line after each decode.
    pub(crate) decode_marks: Option<File>,
    pub(crate) mounting: Mounting,
    pub(crate) held: Held,
}

/// The input of [`Confined::mount`](crate::Confined::mount).
pub(crate) struct Mounting {
    pub(crate) settings: Settings,
    /// The image as users see it: an absolute path, or a URL without credentials.
    pub(crate) shown_image: PathBuf,
    pub(crate) target: Target,
    pub(crate) setup: MountSetup,
    pub(crate) transport: TransportPlan,
    /// The place for the kept metadata of the front.
    pub(crate) kept_front: Option<KeptFront>,
    pub(crate) launch: LaunchPlan,
    /// The control socket; `None` if another process has created it.
    pub(crate) control_socket: Option<io::Result<control::UnnamedSocket>>,
    /// How this process was started; `None` if there was no memory for it.
    pub(crate) invocation: Option<SealedInvocation>,
    /// The memory file for the state of the mount, which its next process gets.
    pub(crate) state_file: Option<File>,
}

impl Request {
    /// Acquires all that the mount needs from outside the sandbox.
    ///
    /// # Errors
    /// The directory, the image or a file that the settings name cannot be used, or a process cannot be started.
    pub fn prepare(self) -> Result<Prepared, Failure> {
        let request = self;
        // The service manager knows a process in the foreground only.
        let mut manager = if request.in_background && !is_upgrade() { None } else { ServiceManager::connect() };
        let invocation = SealedInvocation::of_this_process(manager.is_some()).ok();
        let mut target = Target::find(&request.directory, manager.as_ref())?;
        let settings = request.effective_settings(&target)?;
        let shown_image = request.shown_image();
        let mut log =
            MountLog::open(&shown_image, target.shown(), request.in_background || is_upgrade(), request.remarks);
        let continuity = target.continuity(manager.as_ref());
        let control_socket = control::UnnamedSocket::new();
        // If the pipe is missing, nobody waits for the message.
        let notify_pipe = request.notify_pipe.as_deref().and_then(|pipe| ReachablePath::new(pipe).ok());
        let (engine_options, spill_directory) =
            SpillDirectory::create(&request.image, settings.open.engine.clone(), &log);
        let is_confined = settings.sandbox != Mode::Off;
        let relays = if is_confined { relays(&mut log, manager.as_mut())? } else { Vec::new() };
        let find = || KeptFront::find(&request.image, request.idle, &settings, &log);
        let kept_front = target.taken().is_none().then(find).flatten();
        let kept = kept_front.as_ref().and_then(KeptFront::files);
        let keeper = start_keeper(&settings, &target, continuity, spill_directory.as_ref(), kept, relays)?;
        let held = Held {
            image: remote::without_credentials(&request.image),
            keeper,
            log: Arc::new(log),
            manager,
            notify_pipe,
            idle: request.idle,
            spill_directory,
        };
        // After the start of the keeper, which must share no memory with the rings.
        let transport = TransportPlan::new(settings.transport, &settings.mount, continuity, settings.front)?;
        let state_file = match target.take_state_file() {
            None if held.manager.is_some() => StateFile::create().ok(),
            file => file,
        };
        let decode_marks = settings.decode_marks.as_deref().map(open_marks).transpose()?;
        let remote = RemoteFiles::start(&request.image, &settings.open)?;
        let launch =
            LaunchPlan::prepare(&request.image, &settings, GivenLaunch::default(), remote.image.as_deref(), &held.log)?;
        let mut policy = Policy::default();
        if is_confined {
            policy = serving(&held, control_socket.as_ref().ok());
            policy.calls.rings = transport.rings().is_some();
            launch.allow(&mut policy);
            if let Some(kept_front) = &kept_front {
                kept_front.allow(&mut policy);
            }
        }
        let volume = launch.volume_options(settings.open.volume.clone());
        let open = OpenOptions { engine: engine_options, volume, ..settings.open.clone() };
        let setup = mount_setup(&settings, &held, &transport, &launch);
        let mounting = Mounting {
            settings,
            shown_image,
            target,
            setup,
            transport,
            kept_front,
            launch,
            control_socket: Some(control_socket),
            invocation,
            state_file,
        };
        Ok(Prepared { image: request.image, open, remote, policy, decode_marks, mounting, held })
    }
}

/// Replaces the datagram sockets of this process, before it is confined, by relays in the keeper.
fn relays(log: &mut MountLog, manager: Option<&mut ServiceManager>) -> Result<Vec<Relay>, Failure> {
    let to_manager = manager.map(ServiceManager::relay).transpose()?;
    Ok([log.relay(), to_manager].into_iter().flatten().collect())
}

/// Starts the keeper, which does only what the settings ask for. It is also needed with `sandbox=off`: a process
/// whose own thread waits in an unmount could not end.
fn start_keeper(
    settings: &Settings,
    target: &Target,
    continuity: Continuity,
    spill_directory: Option<&SpillDirectory>,
    kept_front: Option<KeptFiles<'_>>,
    relays: Vec<Relay>,
) -> Result<Arc<Keeper>, Failure> {
    let Settings { mount: options, front, transport, profile, .. } = settings;
    let (mountpoint, taken) = (target.directory(), target.taken());
    let schedule = schedule_of(settings.open.engine.priority);
    let keeper_settings = KeeperSettings {
        directory: mountpoint.map(|directory| directory.path()).or(taken.map(|taken| taken.directory())),
        mountpoint,
        options: &options.kernel,
        users_of: |directory| MountUsers::of(directory).to_string(),
        schedule: &schedule,
        temporary_directory: spill_directory.map(|directory| directory.made.as_path()),
        adopted: taken.map(|taken| taken.state.device),
        kept_front,
        may_have_front: *front != Front::Fuse && taken.is_none(),
        must_have_front: *front == Front::Kernel,
        may_permit_rings: transport.may_use_rings(options, continuity),
        may_unmount: true,
        may_walk: *profile != ProfileChoice::Off,
    };
    let keeper = Keeper::start(keeper_settings, relays);
    keeper.map_err(|error| Failure::failed(format!("cannot start the mounting process: {error}")))
}

/// The rights of a process that serves a mount.
fn serving(held: &Held, control_socket: Option<&control::UnnamedSocket>) -> Policy {
    let mut policy = serving_any();
    if let Some(directory) = &held.spill_directory {
        policy.allow(directory.path(), Access::ReadWrite);
    }
    if let Some(directory) = control_socket.and_then(control::UnnamedSocket::directory) {
        policy.allow(directory, Access::Sockets);
    }
    if let Some(pipe) = &held.notify_pipe {
        policy.allow(pipe.path(), Access::Write);
    }
    policy
}

/// The rights of any process that serves mounts: it has its files, and reads what the machine says about memory and CPUs.
pub(crate) fn serving_any() -> Policy {
    let mut policy = confinement::reading();
    policy.calls = Calls { serve: true, ..Calls::default() };
    policy.capabilities = vec![Capability::SysNice, Capability::IpcLock];
    // Session threads open the device to join the connection. A process without the right to mount gains nothing by opening it.
    policy.allow("/dev/fuse", Access::ReadWrite);
    if let Some(group) = fs::read_to_string("/proc/self/cgroup").ok().as_deref().and_then(group_of) {
        policy.allow(format!("/sys/fs/cgroup{group}/memory.pressure"), Access::Read);
    }
    policy
}

/// The path of the control group, if version 2 is in use.
fn group_of(groups: &str) -> Option<&str> {
    groups.lines().find_map(|line| line.strip_prefix("0::"))
}

/// The options, hooks and handles of the mount.
pub(crate) fn mount_setup(
    settings: &Settings,
    held: &Held,
    transport: &TransportPlan,
    launch: &LaunchPlan,
) -> MountSetup {
    let options = settings.mount.clone();
    #[cfg(debug_assertions)]
    let reads = crate::compromised::read_sink();
    #[cfg(not(debug_assertions))]
    let reads = None;
    MountSetup {
        options: MountOptions {
            // The profile of a launch is made from the image, after the unmount at the latest.
            closes_image: settings.profile != ProfileChoice::Learn,
            front_direct_io: launch.is_learning(),
            ..options
        },
        hooks: MountHooks { faults: Some(held.log.faults()), reads, accesses: Some(launch.access_sink()), ended: None },
        handles: MountHandles {
            keeper: Some(Arc::clone(&held.keeper)),
            rings: transport.rings().cloned(),
            sessions: None,
            pauses_metadata: launch.holds_metadata(),
        },
    }
}

/// Schedules the keeper's threads like those of an engine with this priority.
pub(crate) fn schedule_of(priority: Priority) -> Schedule {
    Arc::new(move |thread, started| {
        let is_calm = matches!(thread, KeeperThread::Readahead { is_urgent: false });
        match started {
            Some(_) if is_calm && priority == Priority::Auto => {}
            Some(started) => {
                schedule_started_thread(started, priority);
            }
            None if priority == Priority::Auto => {
                reschedule_this_thread(!is_calm);
            }
            None => {
                schedule_this_thread(priority);
            }
        }
    })
}

fn open_marks(path: &Path) -> Result<File, Failure> {
    let marks = fs::OpenOptions::new().write(true).open(path);
    marks.map_err(|error| Failure::failed(format!("cannot open {}: {error}", path.shown())))
}
