//! `floe store`: an additional layer store for Podman and CRI-O.

use std::{
    env,
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use clap::Args;
use floe::remote::{ImageReference, RemoteLocation};
use floe_image::ShownName;
use floe_sandbox::Mode;
use floe_store::{Server, Store, StoreOptions, take_credentials};

use crate::{
    fail::{Exit, Fail},
    layer_arguments::{LayerArguments, LayerSignals, failed, is_root_of_machine, serve},
    remote,
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

    /// A repository with layers by diff IDs, oci://registry/repository, for containerd's layer_content_caches = ["DIR"]: the layer
    /// whose archive has the digest sha256:HEX has the tag sha256-HEX
    #[arg(long, value_name = "URL")]
    layer_cache: Option<String>,

    #[command(flatten)]
    layers: LayerArguments,
}

/// Runs the command.
///
/// # Errors
/// The directory cannot be mounted, or the state cannot be used.
pub(crate) fn run(arguments: &Arguments) -> Result<u8, Fail> {
    let Arguments { directory, layer_cache, layers } = arguments;
    // A FUSE mount whose process was killed can be recognised, and is replaced.
    let mount = if is_root_of_machine() { "front=fuse" } else { "front=fuse,overlay-xattrs=user" };
    let options = StoreOptions {
        root: layers.root("floe-store", "floe/store")?,
        credentials: credentials()?,
        mount: layers.mount_command(mount),
        image: layers.remote.options(),
        contents: layer_cache.as_deref().map(repository).transpose()?,
    };
    make_directory(directory)?;
    let store = Store::open(options, Arc::new(|message| say!("floe: {message}"))).map_err(failed)?;
    let signals = LayerSignals::watch()?;
    let server = Server::mount(store, directory).map_err(failed)?;
    let stopper = server.stopper();
    let ready = format!("serving layers at {}", directory.shown());
    serve(signals, move || stopper.stop(), ready, || server.run())
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
