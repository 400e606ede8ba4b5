//! `floe record`: records what a launch reads from a mounted image, or what a container reads from its layers.

mod container;
pub(crate) mod launch;

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
    sync::Arc,
};

use clap::Args;
use floe::{Image, remote::LaunchList};
use floe_engine::PrefetchSet;
use floe_fuse::{Mount, MountHandles, MountHooks, MountOptions, MountSetup, Mountpoint, Readdir};
use floe_image::ShownName;
use floe_keeper::{Access, Detach, Directory, MountEntry, MountTable};
use floe_mkfs::Profile;
use floe_mount::{
    launch::Recorder,
    options::{Settings, Strictness},
};

use self::{
    container::ContainerArguments,
    launch::{Launch, code_of},
};
use crate::{command::push::launch::launch_ranges, fail::Fail, fake, output::ReportFile, remote};

/// Record which names and parts of an image a command needs, in order
///
/// While the command runs, the image is mounted once more over DIR with empty caches, so that each first read is
/// visible. Afterwards DIR is as before. SIGINT, SIGTERM and SIGHUP are passed to the command, so that servers end; the
/// profile then contains the reads so far. After 5 seconds, or at a second signal, the command is killed. `floe mkfs
/// --profile` places the files that were read first in an image, and `floe mount -o profile=` replays the launch ahead
/// of the next one.
///
/// With --container or --cgroup, what a container reads from its layers is recorded, while these stay mounted: for floe convert
/// --profile.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    floe record /mnt/app -- /mnt/app/bin/app --version\n  \
    floe record /mnt/app --image app.erofs --output app.profile -- /mnt/app/bin/app\n  \
    floe record /mnt/app --image app.erofs --launch-list -- /mnt/app/bin/app    # for a web server\n  \
    floe record --container web --output web.profile      # of containerd, Podman or CRI-O; may start later\n\n\
Exit codes: those of the command; 0 for a container; 1 if it cannot be recorded.")]
pub(crate) struct Arguments {
    /// The directory on which the image is mounted, or an empty one with --image
    #[arg(value_name = "DIR", required_unless_present_any = ["container", "cgroup"])]
    directory: Option<PathBuf>,

    /// The image [default: the image that is mounted on DIR]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["container", "cgroup"])]
    image: Option<PathBuf>,

    /// The output file for the profile
    #[arg(long, value_name = "FILE", default_value = "floe.profile")]
    output: PathBuf,

    /// Also write IMAGE.launch: the parts of the image that the command reads. If this file is beside the image on a web server
    /// or in an object store, mounts fetch these parts first
    #[arg(long, conflicts_with_all = ["container", "cgroup"])]
    launch_list: bool,

    /// Options of floe mount that the image needs
    #[arg(short = 'o', value_name = "OPTIONS", conflicts_with_all = ["container", "cgroup"])]
    options: Vec<String>,

    #[command(flatten)]
    container: ContainerArguments,

    /// The command and its arguments
    #[arg(last = true, required_unless_present_any = ["container", "cgroup"], value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Runs the command.
///
/// # Errors
/// The image is not found or cannot be mounted, the command cannot be run, or the profile cannot be written.
pub(crate) fn run(arguments: Arguments) -> Result<u8, Fail> {
    let Some(directory) = &arguments.directory else {
        return container::run(&arguments.container, &arguments.output);
    };
    let directory =
        Directory::open(directory).map_err(|error| Fail::failed(format!("{}: {error}", directory.shown())))?;
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
    hide_nothing(&mut settings);
    let image = remote::open_image(&path, &settings.open)?;
    // This comes before the launch, which must not be in vain.
    let output = ReportFile::open(&arguments.output)?;
    let list = arguments.launch_list.then(|| LaunchListFile::open(&path)).transpose()?;
    let mut options = settings.mount;
    options.kernel.source = remote::without_credentials(&path).to_string_lossy().into_owned();
    let [program, words @ ..] = &arguments.command[..] else { return Err(Fail::usage("a command is missing")) };
    let mut command = Command::new(program);
    fake::enter_again(&mut command);
    command.args(words);
    // This comes before the mount, so that no signal leaves a mount without a process.
    let launch = Launch::prepare()?;
    let (profile, status) = recorded(&image, options, directory, launch, command)?;
    output.write(profile.to_text().as_bytes())?;
    if let Some(list) = list {
        list.write(&arguments.output)?;
    }
    say!(
        "floe: {} are in {}; floe mkfs --profile places their files first, and floe mount -o profile= replays them",
        counts(&profile),
        arguments.output.shown()
    );
    Ok(code_of(status))
}

/// Switches off what would hide reads of a launch.
pub(crate) fn hide_nothing(settings: &mut Settings) {
    settings.open.volume.read_around = false;
    settings.open.volume.prefetch = PrefetchSet::NONE;
}

/// Mounts an image on a directory while a command runs. Returns what the command used of the image, and how it ended. The image was
/// opened with options that [hide nothing](hide_nothing).
///
/// # Errors
/// The image cannot be mounted, or the command cannot be run.
pub(crate) fn recorded(
    image: &Image,
    mut options: MountOptions,
    directory: Directory,
    launch: Launch,
    command: Command,
) -> Result<(Profile, ExitStatus), Fail> {
    let recorder = Arc::new(Recorder::default());
    let sink = Arc::clone(&recorder);
    options.kernel.readahead_bytes = Some(0);
    // Attributes in listings would hide which names the launch looks up.
    options.readdir = Readdir::Plain;
    let hooks = MountHooks { accesses: Some(Arc::new(move |access| sink.note(access))), ..MountHooks::default() };
    let setup = MountSetup { options, hooks, handles: MountHandles::default() };
    let mount = Mount::new(image.reader().clone(), Mountpoint::Directory(directory), setup)?;
    if let Some(refusal) = mount.readahead_refusal() {
        say!(
            "floe: cannot switch the kernel's read-ahead off, so the profile contains more than the launch reads: {refusal}"
        );
    }
    let status = launch.run(command);
    if let Err(error) = mount.unmounter().unmount(Detach::Never) {
        say!("floe: {error}; it disappears with its last use");
        mount.unmounter().unmount(Detach::Lazily)?;
    }
    drop(mount);
    Ok((recorder.take_profile(image)?, status?))
}

/// What a profile contains, in words.
pub(crate) fn counts(profile: &Profile) -> String {
    let bytes: u64 = profile.ranges().iter().map(|range| range.range.len()).sum();
    format!("{} ranges with {} KiB and {} names", profile.ranges().len(), bytes >> 10, profile.names().len())
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
