//! `floe store`: an additional layer store for Podman and CRI-O.

use std::{
    env,
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
};

use clap::Args;
use floe::remote::{ImageReference, RemoteLocation};
use floe_image::{ShownName, start_error};
use floe_mount::{daemon::own_program, handover::ServiceManager};
use floe_sandbox::Mode;
use floe_store::{MountCommand, Server, Store, StoreOptions, take_credentials};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};

use crate::{
    cancellation::unless_ignored,
    fail::{Exit, Fail},
    output::remark,
    remote::{self, RemoteArguments},
};

/// Serve layers to Podman and CRI-O, which mount layers that are EROFS images instead of pulling them
///
/// The directory is an additional layer store. Layers of images that floe convert has put into a registry are mounted from there, and
/// containers start before they are fetched. Layers in use do not need this program: it can be restarted while containers run.
#[derive(Args)]
#[command(after_help = "\
storage.conf (/etc/containers or ~/.config/containers):
  [storage.options]
  additionallayerstores = [\"/var/lib/floe-layers:ref\"]

registries.conf, for registries that need a password, with a link floe-store-auth to floe:
  additional-layer-store-auth-helper = \"/usr/libexec/floe-store-auth\"

Examples:
  floe store /var/lib/floe-layers
  podman unshare floe store ~/.local/share/floe/layers       # for a user
  floe store /var/lib/floe-layers -- -o cache=512M           # arguments of the mounts of layers, as for floe mount
  podman run --rm registry.example/team/app:v1-erofs

Exit codes:
  0  a signal or an unmount ended it; layers in use stay mounted
  1  it could not be started
  2  wrong usage")]
pub(crate) struct Arguments {
    /// The directory of the store, which is created
    directory: PathBuf,

    /// The directory of its state, with the mounts of layers [default: /var/lib/floe-store for root, ~/.local/share/floe/store]
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,

    /// A repository with layers by diff IDs, oci://registry/repository, for containerd's layer_content_caches = ["DIR"]: the layer
    /// whose archive has the digest sha256:HEX has the tag sha256-HEX
    #[arg(long, value_name = "URL")]
    layer_cache: Option<String>,

    #[command(flatten)]
    remote: RemoteArguments,

    /// Arguments for floe mount
    #[arg(last = true, value_name = "ARGUMENT")]
    mount: Vec<OsString>,
}

/// Runs the command.
///
/// # Errors
/// The directory cannot be mounted, or the state cannot be used.
pub(crate) fn run(arguments: &Arguments) -> Result<u8, Fail> {
    let failed = |error: &dyn std::fmt::Display| Fail::failed(error.to_string());
    let root = match &arguments.root {
        Some(root) => root.clone(),
        None => default_root()?,
    };
    let root = std::path::absolute(root).map_err(|error| failed(&error))?;
    // A FUSE mount whose process was killed can be recognised, and is replaced.
    let mut mount: Vec<OsString> = ["mount", "--daemon", "-o", "front=fuse"].map(OsString::from).into();
    if !is_root_of_machine() {
        mount.extend(["-o".into(), "overlay-xattrs=user".into()]);
    }
    mount.extend(arguments.remote.command_line());
    mount.extend(arguments.mount.iter().cloned());
    let options = StoreOptions {
        root,
        credentials: credentials()?,
        mount: MountCommand { program: own_program(), arguments: mount },
        image: arguments.remote.options(),
        contents: arguments.layer_cache.as_deref().map(repository).transpose()?,
    };
    make_directory(&arguments.directory)?;
    let store = Store::open(options, Arc::new(|message| say!("floe: {message}"))).map_err(|error| failed(&error))?;
    let mut signals = Signals::new(unless_ignored(&[SIGINT, SIGTERM, SIGHUP])).map_err(|error| failed(&error))?;
    let server = Server::mount(store, &arguments.directory).map_err(|error| failed(&error))?;
    let stopper = server.stopper();
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
    remark(format_args!("serving layers at {}\n", arguments.directory.shown()));
    server.run().map_err(|error| failed(&error))?;
    Ok(Exit::Done.code())
}

/// Runs `floe-store-auth`, which Podman and CRI-O call with the credentials for an image on standard input.
///
/// # Errors
/// The credentials cannot be stored.
pub(crate) fn run_auth(arguments: &[OsString], _: Mode) -> Result<u8, Fail> {
    if arguments.len() > 1 {
        return Err(Fail::usage("floe-store-auth takes no arguments: Podman and CRI-O call it, see floe store --help"));
    }
    take_credentials(io::stdin().lock(), &credentials()?).map_err(|error| Fail::failed(error.to_string()))?;
    Ok(Exit::Done.code())
}

/// Parses the URL of a repository.
fn repository(url: &str) -> Result<ImageReference, Fail> {
    match remote::location(url)? {
        RemoteLocation::Registry(reference) => Ok(reference),
        other => Err(Fail::usage(format!("{other}: layers are in registries: oci://registry/repository"))),
    }
}

/// Makes the directory, unless there is one, or a mount whose process was killed.
fn make_directory(directory: &Path) -> Result<(), Fail> {
    match fs::create_dir_all(directory) {
        Err(error) if fs::symlink_metadata(directory).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) => {
            Err(Fail::failed(format!("{}: {error}", directory.shown())))
        }
        _ => Ok(()),
    }
}

fn default_root() -> Result<PathBuf, Fail> {
    if is_root_of_machine() {
        return Ok("/var/lib/floe-store".into());
    }
    let data = env::var_os("XDG_DATA_HOME").filter(|path| !path.is_empty()).map(PathBuf::from);
    let data = data.or_else(|| env::var_os("HOME").map(|home| Path::new(&home).join(".local/share")));
    let data =
        data.ok_or_else(|| Fail::usage("name a directory with --root: neither XDG_DATA_HOME nor HOME is set"))?;
    Ok(data.join("floe/store"))
}

/// The directory with credentials, which the store and `floe-store-auth` find without further settings.
fn credentials() -> Result<PathBuf, Fail> {
    if is_root_of_machine() {
        return Ok("/run/floe/store-auth".into());
    }
    let runtime = env::var_os("XDG_RUNTIME_DIR").filter(|path| !path.is_empty());
    let runtime =
        runtime.ok_or_else(|| Fail::failed("XDG_RUNTIME_DIR is not set: it names a directory of the user"))?;
    Ok(Path::new(&runtime).join("floe/store-auth"))
}

/// Whether the user is root, but not in a user namespace, as in `podman unshare`.
fn is_root_of_machine() -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    rustix::process::geteuid().is_root() && map.split_whitespace().eq(["0", "0", "4294967295"])
}
