//! `floe snapshotter`: snapshots for containerd.

use std::{ffi::OsString, path::PathBuf, sync::Arc};

use clap::{Args, ValueEnum};
use floe_image::ShownName;
use floe_mount::{daemon::own_program, quantity};
use floe_snapshotter::{
    ConversionOptions, Conversions, Server, Snapshotter, SnapshotterOptions, TwinOptions, Unreachable,
};

use crate::{
    fail::Fail,
    layer_arguments::{LayerArguments, LayerSignals, failed, serve},
};

/// How the image of an unpacked layer is built. Its directory is removed later, so all of it is compared.
const BUILD: [&str; 11] = [
    "mkfs",
    "--idle",
    "--quiet",
    "--strict",
    "--verify=full",
    "--jobs=1",
    "--memory=64M",
    "--compress",
    "zstd",
    "--pcluster",
    "64k",
];

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
  floe snapshotter --plain-http -- -o cache=512M     # arguments of the mounts of layers, as for floe mount
  ctr images pull --snapshotter floe registry.example/team/app:v1

Exit codes:
  0  a signal ended it; the mounts stay
  1  it could not be started
  2  wrong usage")]
pub(crate) struct Arguments {
    /// The socket to listen on
    #[arg(long, value_name = "PATH", default_value = "/run/floe/snapshotter.sock")]
    address: PathBuf,

    /// What happens with a layer that cannot be mounted from its registry
    #[arg(long, value_enum, default_value_t)]
    unreachable: UnreachableArgument,

    /// Do not ask the registry whether an ordinary image also has converted layers, which would be mounted
    #[arg(long)]
    no_twins: bool,

    /// Use converted layers that refer to the image (floe convert --referrers) also for images that are named by a digest, which does
    /// not pin them: whoever may push to the repository may replace them
    #[arg(long, conflicts_with = "no_twins")]
    trust_referrers: bool,

    /// Let containerd's erofs differ convert ordinary layers, so that they are mounted, too
    #[arg(long)]
    convert: bool,

    /// Convert ordinary layers after they were unpacked, when CPUs and disks have nothing else to do, to images of together at most this
    /// size: later containers use these, and the directories are removed when no container uses them any more
    #[arg(long, value_name = "SIZE", value_parser = quantity::bytes)]
    convert_in_background: Option<u64>,

    #[command(flatten)]
    layers: LayerArguments,
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
    let Arguments { address, unreachable, no_twins, trust_referrers, convert, convert_in_background, layers } =
        arguments;
    let remote = layers.remote.options().remote;
    let options = SnapshotterOptions {
        root: layers.root("floe-snapshotter", "floe/snapshotter")?,
        // A FUSE mount whose process was killed can be recognised, and is replaced.
        mount: layers.mount_command("front=fuse,service=auto"),
        auth_file: remote.auth_file.clone(),
        twins: (!no_twins).then_some(TwinOptions { remote, trusts_referrers: *trust_referrers }),
        unreachable: match unreachable {
            UnreachableArgument::Pull => Unreachable::Pull,
            UnreachableArgument::Fail => Unreachable::Fail,
        },
        converts: *convert,
        conversion: convert_in_background.map(|bytes_max| ConversionOptions {
            program: own_program(),
            arguments: BUILD.map(OsString::from).into(),
            bytes_max,
        }),
    };
    let server = Server::bind(address).map_err(failed)?;
    let snapshotter = Snapshotter::open(options, Arc::new(|message| say!("floe: {message}"))).map_err(failed)?;
    let snapshotter = Arc::new(snapshotter);
    let signals = LayerSignals::watch()?;
    let stopper = server.stopper();
    // Ends with this function.
    let _conversions = Conversions::start(&snapshotter).map_err(failed)?;
    let ready = format!("serving snapshots at {}", address.shown());
    serve(signals, move || stopper.stop(), ready, || server.run(snapshotter))
}
