//! Runs a command with an image as its root directory and records what it reads, for `floe convert --record`.

use std::{
    ffi::{CString, OsStr, OsString},
    fs, io,
    os::{
        fd::OwnedFd,
        unix::{ffi::OsStrExt, fs::DirBuilderExt, process::CommandExt},
    },
    path::{Path, PathBuf},
    process::Command,
};

use clap::{Args, ValueEnum};
use floe_convert::StartConfiguration;
use floe_image::ShownName;
use floe_keeper::{Directory, enter_own_mount_namespace, separate_children};
use floe_mount::{daemon::own_program, options::Settings};
use rustix::{
    fs::CWD,
    mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
        fsconfig_create, fsmount, fsopen, mount, move_mount, open_tree, unmount,
    },
    process::{Signal, geteuid, pivot_root, set_parent_process_death_signal},
};

use crate::{
    command::record::{
        hide_nothing,
        launch::{Launch, code_of},
        recorded,
    },
    fail::Fail,
    layer_arguments::is_root_of_machine,
    remote,
};

/// The name of the command, for another floe process.
pub(crate) const RUN_COMMAND: &str = "run-in-image-for-another";

/// The image, what its launch used, and directories, in that of [`Arguments`]: the mounted image, what the command changes, and its root.
pub(super) const IMAGE: &str = "image.erofs";
pub(super) const PROFILE: &str = "profile";
const LOWER: &str = "lower";
const UPPER: &str = "upper";
const ROOT: &str = "root";

/// The search path of programs if the image has none, as with other programs that start containers.
const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The maximum length of the list of users of an image, in bytes.
const USERS_BYTES_MAX: u64 = 4 << 20;

/// The arguments of the process that runs the command.
#[derive(Args)]
pub(crate) struct Arguments {
    directory: PathBuf,
    #[arg(long, value_enum, default_value_t)]
    stage: Stage,
    #[arg(long)]
    environment: Vec<OsString>,
    #[arg(long)]
    working_directory: Option<PathBuf>,
    #[arg(long)]
    user: Option<String>,
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// The processes, each of which starts the next one.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Default)]
enum Stage {
    /// Mounts the image, in a mount namespace, and records what is used of it.
    #[default]
    Record,
    /// Is the parent of a process namespace, with a mount namespace that the record stage does not share.
    Separate,
    /// Is the first process there. Waits for the command, whose root directory it prepares.
    Inside,
}

/// The command that runs another one in the [`IMAGE`] in a directory, and writes the [`PROFILE`] beside it. What the command changes is in
/// memory.
///
/// # Errors
/// The directory cannot be written.
pub(super) fn command(directory: &Path, start: &StartConfiguration, words: &[OsString]) -> io::Result<Command> {
    [LOWER, UPPER, ROOT].iter().try_for_each(|name| fs::create_dir(directory.join(name)))?;
    let mut command = Command::new(own_program());
    // The program name selects drop-in programs, so it must be `floe`.
    command.arg0("floe").arg(RUN_COMMAND).arg(directory);
    command.args(start.environment.iter().map(|variable| format!("--environment={variable}")));
    command.args(start.directory.iter().map(|directory| format!("--working-directory={directory}")));
    command.args(start.user.iter().map(|user| format!("--user={user}")));
    command.arg("--").args(words);
    Ok(command)
}

/// Runs the command.
///
/// # Errors
/// The kernel refuses the namespaces or a mount, or the command cannot be started.
pub(crate) fn run(arguments: &Arguments) -> Result<u8, Fail> {
    let failed = |error: io::Error| Fail::failed(format!("cannot run a command in the image: {error}"));
    let launch = Launch::prepare()?;
    match arguments.stage {
        Stage::Record => {
            enter_own_mount_namespace().map_err(failed)?;
            arguments.record(launch.of_launches(2))
        }
        Stage::Separate => {
            separate_children().map_err(failed)?;
            launch.of_launches(1).run(arguments.next(Stage::Inside)).map(code_of)
        }
        Stage::Inside => {
            // All other processes of the namespace end with this one, and it ends with the one that waits for it.
            set_parent_process_death_signal(Some(Signal::KILL)).map_err(|error| failed(error.into()))?;
            enter(&arguments.directory).map_err(failed)?;
            launch.run(arguments.in_image().map_err(failed)?).map(code_of)
        }
    }
}

impl Arguments {
    /// Mounts the image, runs the next stage, and writes what that has used.
    fn record(&self, launch: Launch) -> Result<u8, Fail> {
        let mut settings = Settings::default();
        hide_nothing(&mut settings);
        let image = remote::open_image(&self.directory.join(IMAGE), &settings.open)?;
        let failed = |error: io::Error| Fail::failed(format!("{}: {error}", self.directory.shown()));
        let directory = Directory::open(&self.directory.join(LOWER)).map_err(failed)?;
        settings.mount.kernel.source = IMAGE.to_owned();
        let (profile, status) = recorded(&image, settings.mount, directory, launch, self.next(Stage::Separate))?;
        fs::write(self.directory.join(PROFILE), profile.to_text()).map_err(failed)?;
        Ok(code_of(status))
    }

    /// The command for another stage.
    fn next(&self, stage: Stage) -> Command {
        let Self { directory, stage: _, environment, working_directory, user, command: words } = self;
        let option = |name: &str, value: &OsStr| {
            let mut word = OsString::from(name);
            word.push(value);
            word
        };
        let stage = stage.to_possible_value().map(|value| format!("--stage={}", value.get_name()));
        let mut command = Command::new(own_program());
        command.arg0("floe").arg(RUN_COMMAND).arg(directory).args(stage);
        command.args(environment.iter().map(|variable| option("--environment=", variable)));
        command.args(working_directory.iter().map(|path| option("--working-directory=", path.as_os_str())));
        command.args(user.iter().map(|user| format!("--user={user}")));
        command.arg("--").args(words);
        command
    }

    /// The command itself, for a process that has [entered](enter) the image.
    fn in_image(&self) -> io::Result<Command> {
        let [program, words @ ..] = &self.command[..] else { return Err(io::ErrorKind::InvalidInput.into()) };
        let mut command = Command::new(program);
        command.args(words).env_clear();
        let user = User::of(self.user.as_deref().unwrap_or("0"))?;
        let defaults = [OsString::from(PATH), format!("HOME={}", user.home).into()];
        for variable in defaults.iter().chain(&self.environment) {
            let bytes = variable.as_bytes();
            let end = bytes.iter().position(|byte| *byte == b'=').unwrap_or(bytes.len());
            command.env(OsStr::from_bytes(&bytes[..end]), OsStr::from_bytes(bytes.get(end + 1..).unwrap_or_default()));
        }
        command.current_dir(self.working_directory.as_deref().unwrap_or(Path::new("/")));
        // The user namespace of a user has no other ids.
        if !is_in_user_namespace() {
            command.gid(user.group).uid(user.id);
        }
        Ok(command)
    }
}

/// Whether this process is root in a user namespace only.
fn is_in_user_namespace() -> bool {
    geteuid().is_root() && !is_root_of_machine()
}

/// Makes an overlay over the image the root directory of this process, with the devices and the resolver of the machine. No link in the image
/// leads out of it.
fn enter(directory: &Path) -> io::Result<()> {
    std::env::set_current_dir(directory)?;
    mount("tmpfs", UPPER, "tmpfs", MountFlags::empty(), Some(c"mode=0755"))?;
    ["files", "work"].iter().try_for_each(|name| fs::create_dir(Path::new(UPPER).join(name)))?;
    let of_user = if is_in_user_namespace() { ",userxattr" } else { "" };
    let options = format!("lowerdir={LOWER},upperdir={UPPER}/files,workdir={UPPER}/work{of_user}");
    let options = CString::new(options).map_err(io::Error::other)?;
    mount("overlay", ROOT, "overlay", MountFlags::empty(), Some(options.as_c_str()))?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    let open = |path: &str| open_tree(CWD, path, flags);
    let (devices, system, resolver) = (open("/dev")?, open("/sys")?, open("/etc/resolv.conf").ok());
    // In a user namespace, the kernel wants to see another one beside it.
    let processes = fsopen("proc", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&processes)?;
    let strict =
        MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let processes = fsmount(&processes, FsMountFlags::FSMOUNT_CLOEXEC, strict)?;
    std::env::set_current_dir(ROOT)?;
    pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    std::env::set_current_dir("/")?;
    for (name, mode) in [("dev", 0o755), ("sys", 0o755), ("proc", 0o755), ("tmp", 0o1777)] {
        match fs::DirBuilder::new().mode(mode).create(name) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    attach(&devices, "/dev")?;
    attach(&system, "/sys")?;
    attach(&processes, "/proc")?;
    if let Some(resolver) = resolver
        && fs::OpenOptions::new().append(true).create(true).open("/etc/resolv.conf").is_ok()
    {
        // Without it, the command has no names of hosts.
        let _ = attach(&resolver, "/etc/resolv.conf");
    }
    Ok(())
}

fn attach(tree: &OwnedFd, path: &str) -> io::Result<()> {
    Ok(move_mount(tree, "", CWD, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

/// The user as whom the command runs.
struct User {
    id: u32,
    group: u32,
    home: String,
}

impl User {
    /// The user that an image names: `NAME`, `NUMBER`, `NAME:GROUP`. The image may have a list of them.
    ///
    /// # Errors
    /// There is no such user or group.
    fn of(text: &str) -> io::Result<Self> {
        let (user, group) = text.split_once(':').map_or((text, None), |(user, group)| (user, Some(group)));
        let users = list("/etc/passwd");
        let entry = users
            .lines()
            .map(|line| line.split(':').collect::<Vec<_>>())
            .find(|entry| entry.first() == Some(&user) || entry.get(2) == Some(&user));
        let field = |place: usize| entry.as_ref().and_then(|entry| entry.get(place).copied());
        let unknown =
            |kind: &str, name: &str| io::Error::other(format!("the image has no {kind} {}", name.escape_debug()));
        let id = user.parse().ok().or_else(|| field(2)?.parse().ok()).ok_or_else(|| unknown("user", user))?;
        let group = match group {
            None => field(3).and_then(|group| group.parse().ok()).unwrap_or(0),
            Some(group) => {
                let groups = list("/etc/group");
                let named =
                    groups.lines().find_map(|line| line.strip_prefix(group)?.strip_prefix(':')?.split(':').nth(1));
                let found = group.parse().ok().or_else(|| named?.parse().ok());
                found.ok_or_else(|| unknown("group", group))?
            }
        };
        Ok(Self { id, group, home: field(5).filter(|home| !home.is_empty()).unwrap_or("/").to_owned() })
    }
}

/// A list of users or groups; empty if the image has none.
fn list(path: &str) -> String {
    let is_short = fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.len() <= USERS_BYTES_MAX);
    let bytes = if is_short { fs::read(path).unwrap_or_default() } else { Vec::new() };
    String::from_utf8_lossy(&bytes).into_owned()
}
