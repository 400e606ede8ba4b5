//! `floe record`: runs a launch, and records what it reads from a mounted image.

use std::{
    ffi::OsString,
    fs, io,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use clap::Args;
use floe::remote::LaunchList;
use floe_engine::PrefetchSet;
use floe_fuse::{Mount, MountHandles, MountHooks, MountSetup, Mountpoint, Readdir};
use floe_image::ShownName;
use floe_keeper::{Access, Detach, Directory, MountEntry, MountTable};
use floe_mount::{
    launch::Recorder,
    options::{Settings, Strictness},
};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::{
    consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM},
    iterator::{SignalsInfo, exfiltrator::WithOrigin},
    low_level::siginfo::{Cause, Origin},
};

use crate::{
    cancellation::unless_ignored,
    command::push::launch::launch_ranges,
    fail::{Exit, Fail},
    fake,
    output::ReportFile,
    remote,
};

/// Record which names and parts of an image a command needs, in order
///
/// While the command runs, the image is mounted once more over DIR with empty caches, so that each first read is
/// visible. Afterwards DIR is as before. SIGINT, SIGTERM and SIGHUP are passed to the command, so that servers end; the
/// profile then contains the reads so far. After 5 seconds, or at a second signal, the command is killed. `floe mkfs
/// --profile` places the files that were read first in an image, and `floe mount -o profile=` replays the launch ahead
/// of the next one.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    floe record /mnt/app -- /mnt/app/bin/app --version\n  \
    floe record /mnt/app --image app.erofs --output app.profile -- /mnt/app/bin/app\n  \
    floe record /mnt/app --image app.erofs --launch-list -- /mnt/app/bin/app    # for a web server\n\n\
Exit codes: those of the command; 1 if it cannot be recorded.")]
pub(crate) struct Arguments {
    /// The directory on which the image is mounted, or an empty one with --image
    #[arg(value_name = "DIR")]
    directory: PathBuf,

    /// The image [default: the image that is mounted on DIR]
    #[arg(long, value_name = "FILE")]
    image: Option<PathBuf>,

    /// The output file for the profile
    #[arg(long, value_name = "FILE", default_value = "floe.profile")]
    output: PathBuf,

    /// Also write IMAGE.launch: the parts of the image that the command reads. If this file is beside the image on a web server
    /// or in an object store, mounts fetch these parts first
    #[arg(long)]
    launch_list: bool,

    /// Options of floe mount that the image needs
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<String>,

    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Runs the command.
///
/// # Errors
/// The image is not found or cannot be mounted, the command cannot be run, or the profile cannot be written.
pub(crate) fn run(arguments: Arguments) -> Result<u8, Fail> {
    let directory = Directory::open(&arguments.directory)
        .map_err(|error| Fail::failed(format!("{}: {error}", arguments.directory.shown())))?;
    let table = MountTable::read().map_err(|error| Fail::failed(format!("cannot read the mount table: {error}")))?;
    let covered = table.on(directory.path());
    let path = match arguments.image {
        Some(image) => image,
        None => mounted_image(directory.path(), covered)?,
    };
    let mut settings = Settings::default();
    if let Some(covered) = covered {
        // The launch has the same rights as on the mount that is covered.
        settings.mount.kernel.flags = covered.flags;
        settings.mount.kernel.access = Some(if covered.lets_others_in { Access::All } else { Access::Owner });
        settings.mount.kernel.checks_permissions = covered.checks_permissions;
    }
    for list in &arguments.options {
        settings.take_list(list, Strictness::User)?;
    }
    // Prefetch would hide reads of the launch.
    settings.open.volume.read_around = false;
    settings.open.volume.prefetch = PrefetchSet::NONE;
    let image = remote::open_image(&path, &settings.open)?;
    // This comes before the launch, which must not be in vain.
    let output = ReportFile::open(&arguments.output)?;
    let list = arguments.launch_list.then(|| LaunchListFile::open(&path)).transpose()?;
    let recorder = Arc::new(Recorder::default());
    let sink = Arc::clone(&recorder);
    let mut options = settings.mount;
    options.kernel.source = remote::without_credentials(&path).to_string_lossy().into_owned();
    options.kernel.readahead_bytes = Some(0);
    // Attributes in listings would hide which names the launch looks up.
    options.readdir = Readdir::Plain;
    let hooks = MountHooks { accesses: Some(Arc::new(move |access| sink.note(access))), ..MountHooks::default() };
    let setup = MountSetup { options, hooks, handles: MountHandles::default() };
    // This comes before the mount, so that no signal leaves a mount without a process.
    let launch = Launch::prepare()?;
    let mount = Mount::new(image.reader().clone(), Mountpoint::Directory(directory), setup)?;
    if let Some(refusal) = mount.readahead_refusal() {
        say!(
            "floe: cannot switch the kernel's read-ahead off, so the profile contains more than the launch reads: {refusal}"
        );
    }
    let status = launch.run(&arguments.command);
    if let Err(error) = mount.unmounter().unmount(Detach::Never) {
        say!("floe: {error}; it disappears with its last use");
        mount.unmounter().unmount(Detach::Lazily)?;
    }
    drop(mount);
    let status = status?;
    let profile = recorder.take_profile(&image)?;
    output.write(profile.to_text().as_bytes())?;
    if let Some(list) = list {
        list.write(&arguments.output)?;
    }
    let bytes: u64 = profile.ranges().iter().map(|range| range.range.len()).sum();
    say!(
        "floe: {} ranges with {} KiB and {} names are in {}; floe mkfs --profile places their files first, and floe \
         mount -o profile= replays them",
        profile.ranges().len(),
        bytes >> 10,
        profile.names().len(),
        arguments.output.shown()
    );
    Ok(code_of(status))
}

/// The list of the parts of an image that a launch reads, beside the image.
struct LaunchListFile {
    image: PathBuf,
    image_len: u64,
    output: ReportFile,
}

impl LaunchListFile {
    fn open(image: &Path) -> Result<Self, Fail> {
        let failed = |error| Fail::usage(format!("{}: --launch-list needs an image file: {error}", image.shown()));
        let image_len = fs::metadata(image).map_err(failed)?.len();
        let mut path = image.as_os_str().to_owned();
        path.push(LaunchList::SUFFIX);
        Ok(Self { image: image.to_path_buf(), image_len, output: ReportFile::open(Path::new(&path))? })
    }

    /// Writes the list for the launch in this profile.
    fn write(self, profile: &Path) -> Result<(), Fail> {
        let groups = launch_ranges(&self.image, Some(profile), self.image_len)?;
        // The others are for programs that read more.
        let needed = groups.into_iter().next().unwrap_or_default();
        self.output.write(LaunchList::of(&needed, self.image_len).to_text().as_bytes())
    }
}

/// The image that is mounted on a directory, by Floe or by the kernel.
fn mounted_image(directory: &Path, entry: Option<&MountEntry>) -> Result<PathBuf, Fail> {
    let advice = "name the image with --image";
    let entry = entry.ok_or_else(|| Fail::usage(format!("nothing is mounted on {}: {advice}", directory.shown())))?;
    let source = entry.image().to_owned();
    if source.is_file() {
        return Ok(source);
    }
    Err(Fail::usage(format!("cannot find the image that is mounted on {}: {advice}", directory.shown())))
}

/// The exit code that a shell reports for the command.
fn code_of(status: ExitStatus) -> u8 {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    u8::try_from(code).unwrap_or(Exit::Failed.code())
}

/// How long a command may run on after a signal before it is killed.
const GRACE: Duration = Duration::from_secs(5);

/// The polling interval for the end of a command that got a signal.
const GLANCE: Duration = Duration::from_millis(10);

/// A launch that ends before the recording program does: signals that ask to end go to the command.
struct Launch {
    signals: SignalsInfo<WithOrigin>,
}

impl Launch {
    /// Redirects signals: from here on they end the command, not this program.
    ///
    /// # Errors
    /// Signal handlers cannot be installed.
    fn prepare() -> Result<Self, Fail> {
        let watched = [unless_ignored(&[SIGINT, SIGTERM, SIGHUP, SIGQUIT]), vec![SIGCHLD]].concat();
        let signals = SignalsInfo::<WithOrigin>::new(watched);
        Ok(Self { signals: signals.map_err(|error| Fail::failed(format!("cannot install signal handlers: {error}")))? })
    }

    /// Runs a command until it ends, possibly by a signal. Returns its exit status.
    ///
    /// # Errors
    /// The command cannot be run.
    fn run(mut self, command: &[OsString]) -> Result<ExitStatus, Fail> {
        let Some((program, arguments)) = command.split_first() else {
            return Err(Fail::usage("a command is missing"));
        };
        let failed = |error: io::Error| Fail::failed(format!("{}: {error}", program.shown()));
        let mut command = Command::new(program);
        fake::enter_again(&mut command);
        let mut child = command.args(arguments).spawn().map_err(failed)?;
        loop {
            if let Some(status) = child.try_wait().map_err(failed)? {
                return Ok(status);
            }
            let ending = self.signals.wait().find(asks_to_end);
            if let Some(origin) = ending {
                return self.end(&mut child, origin.signal).map_err(failed);
            }
        }
    }

    /// Passes a signal on. Kills the command if it does not end, or at a second signal.
    fn end(&mut self, child: &mut Child, signal: i32) -> io::Result<ExitStatus> {
        if let Some(signal) = Signal::from_named_raw(signal) {
            kill_process(Pid::from_child(child), signal)?;
        }
        let start = Instant::now();
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
            if start.elapsed() >= GRACE || self.signals.pending().any(|origin| asks_to_end(&origin)) {
                say!("floe: the command does not end; killing it");
                child.kill()?;
                return child.wait();
            }
            thread::sleep(GLANCE);
        }
    }
}

/// Whether a signal must be passed to the command. A signal from a key at the terminal reached the command as well, so
/// it is not passed on.
fn asks_to_end(origin: &Origin) -> bool {
    origin.signal != SIGCHLD && !(matches!(origin.signal, SIGINT | SIGQUIT) && origin.cause == Cause::Kernel)
}
