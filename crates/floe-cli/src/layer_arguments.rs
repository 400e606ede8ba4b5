//! What the programs have in common that mount layers of container images.

use std::{
    ffi::OsString,
    fmt::Display,
    fs, io,
    path::{Path, PathBuf},
    thread,
};

use clap::Args;
use floe_image::start_error;
use floe_keeper::MountCommand;
use floe_mount::{daemon::own_program, handover::ServiceManager};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};

use crate::{
    cancellation::unless_ignored,
    fail::{Exit, Fail},
    output::remark,
    remote::RemoteArguments,
};

/// The directory of the state, and the options of the mounts of layers.
#[derive(Args)]
pub(crate) struct LayerArguments {
    /// The directory of the state, with the mounts of layers [default: below /var/lib for root, else below ~/.local/share]
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) remote: RemoteArguments,

    /// Arguments for floe mount
    #[arg(last = true, value_name = "ARGUMENT")]
    mount: Vec<OsString>,
}

impl LayerArguments {
    /// The directory of the state, as an absolute path. The default has this name in `/var/lib` for root, and the other one in the
    /// data directory of a user.
    ///
    /// # Errors
    /// There is no such directory.
    pub(crate) fn root(&self, of_root: &str, of_user: &str) -> Result<PathBuf, Fail> {
        let root = match &self.root {
            Some(root) => root.clone(),
            None if is_root_of_machine() => Path::new("/var/lib").join(of_root),
            None => data_directory()?.join(of_user),
        };
        std::path::absolute(root).map_err(failed)
    }

    /// The command that mounts layers, with these options of `-o` before those of the user.
    pub(crate) fn mount_command(&self, options: &str) -> MountCommand {
        let mut arguments: Vec<OsString> = ["mount", "--daemon", "-o", options].map(OsString::from).into();
        arguments.extend(self.remote.command_line());
        arguments.extend(self.mount.iter().cloned());
        MountCommand { program: own_program(), arguments }
    }
}

/// Runs a server until it ends. A signal calls `stop`; a second one ends the program at once. The service manager, and users, are told
/// that it is `ready`.
///
/// # Errors
/// The server fails, or signals cannot be watched.
pub(crate) fn serve(
    signals: LayerSignals,
    stop: impl FnOnce() + Send + 'static,
    ready: impl Display,
    run: impl FnOnce() -> io::Result<()>,
) -> Result<u8, Fail> {
    let LayerSignals(mut signals) = signals;
    let wait = move || {
        if signals.forever().next().is_some() {
            stop();
        }
        if signals.forever().next().is_some() {
            std::process::exit(Exit::Failed.code().into());
        }
    };
    let started = thread::Builder::new().name("floe-signals".to_owned()).spawn(wait);
    started.map_err(|error| failed(start_error(error)))?;
    if let Some(manager) = ServiceManager::connect() {
        manager.ready();
    }
    remark(format_args!("{ready}\n"));
    run().map_err(failed)?;
    Ok(Exit::Done.code())
}

/// The signals that end a server. They are watched before it mounts anything.
pub(crate) struct LayerSignals(Signals);

impl LayerSignals {
    /// Watches signals from now on.
    ///
    /// # Errors
    /// Signal handlers cannot be installed.
    pub(crate) fn watch() -> Result<Self, Fail> {
        Signals::new(unless_ignored(&[SIGINT, SIGTERM, SIGHUP])).map(Self).map_err(failed)
    }
}

/// An error of a server of layers.
pub(crate) fn failed(error: impl Display) -> Fail {
    Fail::failed(error.to_string())
}

/// Whether the user is root, but not in a user namespace, as in `podman unshare`.
pub(crate) fn is_root_of_machine() -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    rustix::process::geteuid().is_root() && map.split_whitespace().eq(["0", "0", "4294967295"])
}

fn data_directory() -> Result<PathBuf, Fail> {
    let variable = |name| std::env::var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from);
    let data = variable("XDG_DATA_HOME").or_else(|| Some(variable("HOME")?.join(".local/share")));
    data.ok_or_else(|| Fail::usage("name a directory with --root: neither XDG_DATA_HOME nor HOME is set"))
}
