//! `floe snapshotter`: snapshots for containerd.

use std::{ffi::OsString, path::PathBuf, sync::Arc, thread};

use clap::{Args, ValueEnum};
use floe_image::{ShownName, start_error};
use floe_mount::{daemon::own_program, handover::ServiceManager};
use floe_snapshotter::{MountCommand, Server, Snapshotter, SnapshotterOptions, Unreachable};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};

use crate::{
    cancellation::unless_ignored,
    fail::{Exit, Fail},
    output::remark,
};

/// Serve snapshots to containerd, which mounts layers that are EROFS images instead of unpacking them
///
/// Layers of images that floe convert has made are mounted from the registry, and containers start before they are fetched. Other
/// layers are unpacked, as with containerd's overlayfs snapshotter. The mounts do not need this program: it can be restarted
/// while containers run.
#[derive(Args)]
#[command(after_help = "\
/etc/containerd/config.toml:
  [proxy_plugins.floe]
    type = \"snapshot\"
    address = \"/run/floe/snapshotter.sock\"
    [proxy_plugins.floe.exports]
      root = \"/var/lib/floe-snapshotter\"
      enable_remote_snapshot_annotations = \"true\"

Examples:
  floe snapshotter
  floe snapshotter -- --plain-http -o cache=512M     # arguments of the mounts of layers, as for floe mount
  ctr images pull --snapshotter floe registry.example/team/app:v1

Exit codes:
  0  a signal ended it; the mounts stay
  1  it could not be started
  2  wrong usage")]
pub(crate) struct Arguments {
    /// The socket to listen on
    #[arg(long, value_name = "PATH", default_value = "/run/floe/snapshotter.sock")]
    address: PathBuf,

    /// The directory of the snapshots
    #[arg(long, value_name = "DIR", default_value = "/var/lib/floe-snapshotter")]
    root: PathBuf,

    /// What happens with a layer that cannot be mounted from its registry
    #[arg(long, value_enum, default_value_t)]
    unreachable: UnreachableArgument,

    /// Let containerd's erofs differ convert ordinary layers, so that they are mounted, too
    #[arg(long)]
    convert: bool,

    /// Arguments for floe mount
    #[arg(last = true, value_name = "ARGUMENT")]
    mount: Vec<OsString>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Default)]
enum UnreachableArgument {
    /// containerd fetches it as a whole
    #[default]
    Pull,
    /// The pull fails
    Fail,
}

/// Runs the command.
///
/// # Errors
/// The socket or the directory cannot be used.
pub(crate) fn run(arguments: &Arguments) -> Result<u8, Fail> {
    let failed = |error: &dyn std::fmt::Display| Fail::failed(error.to_string());
    let root = std::path::absolute(&arguments.root).map_err(|error| failed(&error))?;
    // A FUSE mount whose process was killed can be recognised, and is replaced.
    let mut mount: Vec<OsString> = ["mount", "--daemon", "-o", "front=fuse,service=auto"].map(OsString::from).into();
    mount.extend(arguments.mount.iter().cloned());
    let options = SnapshotterOptions {
        root,
        mount: MountCommand { program: own_program(), arguments: mount },
        unreachable: match arguments.unreachable {
            UnreachableArgument::Pull => Unreachable::Pull,
            UnreachableArgument::Fail => Unreachable::Fail,
        },
        converts: arguments.convert,
    };
    let server = Server::bind(&arguments.address).map_err(|error| failed(&error))?;
    let snapshotter = Snapshotter::open(options, Arc::new(|message| say!("floe: {message}")));
    let snapshotter = snapshotter.map_err(|error| failed(&error))?;
    let stopper = server.stopper();
    let mut signals = Signals::new(unless_ignored(&[SIGINT, SIGTERM, SIGHUP])).map_err(|error| failed(&error))?;
    let wait = move || {
        if signals.forever().next().is_some() {
            stopper.stop();
        }
        if signals.forever().next().is_some() {
            std::process::exit(Exit::Failed.code().into());
        }
    };
    let started = thread::Builder::new().name("floe-signals".to_owned()).spawn(wait);
    started.map_err(|error| failed(&start_error(error)))?;
    if let Some(manager) = ServiceManager::connect() {
        manager.ready();
    }
    remark(format_args!("serving snapshots at {}\n", arguments.address.shown()));
    server.run(Arc::new(snapshotter)).map_err(|error| failed(&error))?;
    Ok(Exit::Done.code())
}
