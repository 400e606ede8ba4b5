//! `floe push`: uploads an image to a registry.

pub(crate) mod launch;

use std::{fs, io, path::PathBuf};

use clap::Args;
use floe::{
    Format,
    remote::{ImageToPush, Network, PushedFormat},
};
use floe_image::ShownName;
use floe_remote_cache::{VerityRoot, parse_sidecar, sidecar_path};
use floe_source::{FileSource, ImageFormat};
use indicatif::HumanBytes;

use super::extract::progress_bar;
use crate::{
    fail::{Exit, Fail},
    output::Output,
    remote::{self, NetworkArguments},
};

/// Upload an image to an OCI registry, from which floe reads it in place and containerd pulls it
///
/// A table with the digests of the image is uploaded too, so that each part can be verified when it is read. If a
/// dm-verity hash tree follows the image (floe mkfs --verity, or containerd's), the manifest contains its root hash. If
/// the image was built with a launch profile (floe mkfs --profile), or one is given here, a copy of the parts of the image
/// that the launch reads is uploaded too, and mounts fetch it first.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    floe push system.erofs oci://registry.example/team/system:v1\n  \
    floe push tools.squashfs oci://localhost:5000/tools:latest\n  \
    floe push --profile app.profile app.erofs oci://registry.example/team/app:v1\n\n\
    Uses the credentials of docker and Podman (~/.docker/config.json, REGISTRY_AUTH_FILE).\n\n\
    Exit codes:\n  \
    0  the image is in the registry\n  \
    1  it could not be uploaded\n  \
    2  wrong usage\n  \
    3  the file is not an image")]
pub(crate) struct Arguments {
    /// The EROFS or SquashFS image file
    image: PathBuf,

    /// The destination: oci://registry/repository:tag
    #[arg(value_name = "URL")]
    location: String,

    /// The profile of a launch, from floe record [default: the launch list in the image]
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,

    /// Print nothing but errors
    #[arg(short, long)]
    quiet: bool,

    #[command(flatten)]
    network: NetworkArguments,
}

/// Runs the command.
///
/// # Errors
/// The file is not an image, or the registry refuses it.
pub(crate) fn run(arguments: &Arguments) -> Result<u8, Fail> {
    let location = remote::location(&arguments.location)?;
    let path = &arguments.image;
    let failed = |error: io::Error| Fail::failed(format!("{}: {error}", path.shown()));
    let source = FileSource::open(path).map_err(failed)?;
    let format = match ImageFormat::of(&source).map_err(failed)? {
        Some(Format::Erofs) => PushedFormat::Erofs,
        Some(Format::Squashfs) => PushedFormat::Squashfs,
        None => {
            let message = format!("{}: not an EROFS or SquashFS image", path.shown());
            return Err(Fail::failed(message).with_exit(Exit::BadImage));
        }
    };
    let verity = verity_root(path)?;
    let file = fs::File::open(path).map_err(failed)?;
    let len = file.metadata().map_err(failed)?.len();
    let launch = launch::launch_ranges(path, arguments.profile.as_deref(), len)?;
    let network = Network::new(arguments.network.options()).map_err(failed)?;
    let bar = progress_bar(arguments.quiet);
    bar.set_length(len);
    let image = ImageToPush { file: &file, format, verity, launch };
    let pushed = network.push(&image, &location, &|done| bar.set_position(done));
    bar.finish_and_clear();
    let pushed = pushed.map_err(|error| match error.kind() {
        io::ErrorKind::InvalidInput => Fail::usage(error.to_string()),
        _ => Fail::failed(error.to_string()),
    })?;
    if arguments.quiet {
        return Ok(Exit::Done.code());
    }
    Output::print(format_args!("{} with {}\n", pushed.location, HumanBytes(pushed.len)))
}

/// The root of the hash tree behind the image, from the file beside the image.
fn verity_root(image: &std::path::Path) -> Result<Option<VerityRoot>, Fail> {
    let path = sidecar_path(image);
    match fs::read_to_string(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Fail::failed(format!("{}: {error}", path.shown()))),
        Ok(text) => match parse_sidecar(&text) {
            Ok(root) => Ok(Some(root)),
            Err(error) => Err(Fail::failed(format!("{}: {error}", path.shown()))),
        },
    }
}
