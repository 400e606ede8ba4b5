//! `floe convert`: converts the layers of a container image to EROFS.

mod launch;
pub(crate) mod root;

use std::{
    ffi::OsString,
    num::{NonZeroU32, NonZeroUsize},
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::Duration,
};

use clap::Args;
use floe::remote::{Network, RemoteLocation};
use floe_convert::{Converted, Error, Place, Settings, SourceImage, convert};
use floe_mkfs::{COMPRESSORS, Compression, Compressor, CompressorSettings};
use floe_mount::quantity;
use indicatif::HumanBytes;
use serde::Serialize;

use super::extract::progress_bar;
use crate::{
    cancellation,
    fail::{Exit, Fail},
    output::Output,
    remote::{self, NetworkArguments},
};

/// The default of `--compress`, and its pcluster size in bytes.
const COMPRESS_DEFAULT: &str = "zstd";
const PCLUSTER_BYTES: u64 = 64 << 10;

/// The default of `--memory`, in bytes.
const MEMORY_BYTES: u64 = 96 << 20;

/// The window of LZ4 in bytes.
const LZ4_WINDOW_BYTES: u32 = 64 << 10;

/// How long a conversion may continue after a signal before the program ends.
const SIGNAL_PATIENCE: Duration = Duration::from_secs(2);

/// Convert the layers of a container image to EROFS, from which containers start without unpacking
///
/// Each layer becomes an EROFS image (application/vnd.erofs.layer.v1), with the whiteouts of overlayfs. The target gets the
/// manifests of the source, and beside each the converted one, for the same platform with the feature erofs. Layers that
/// the target has from an earlier conversion are not converted again. The same image and options give the same bytes.
///
/// With --record, a command first runs in the image, and layers get the profile of what it reads: mounts then prefetch that. The command
/// sees the network and the devices of this machine, but none of its files: use it for images that you would run.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    floe convert oci://registry.example/team/app:v1 oci://registry.example/team/app:v1-erofs\n  \
    floe convert app.tar layout            # an archive of docker save\n  \
    floe convert --merged --only-converted layout oci://localhost:5000/app:v1\n  \
    floe convert --referrers oci://registry.example/team/app:v1 oci://registry.example/team/app:v1\n  \
    floe convert --compress lz4hc layout other      # for kernels before 6.10, which have no zstd in EROFS\n  \
    floe convert app.tar layout --record -- /usr/bin/app --version    # with a launch profile\n\n\
    Uses the credentials of docker and Podman (~/.docker/config.json, REGISTRY_AUTH_FILE).\n\n\
    Exit codes:\n  \
    0  the converted image is stored\n  \
    1  it could not be converted\n  \
    2  wrong usage\n  \
    130  a signal ended it")]
pub(crate) struct Arguments {
    /// The image: oci://registry/repository:tag, a directory with an OCI layout, or an archive of one or of docker save
    source: String,

    /// Where to store it: oci://registry/repository:tag, or a directory with an OCI layout, which is created
    target: String,

    /// The name or the tag of the image in the source, if that has several
    #[arg(long, value_name = "NAME")]
    source_name: Option<String>,

    /// The name of the image in a layout [default: that of the source, or latest]
    #[arg(long, value_name = "NAME")]
    target_name: Option<String>,

    /// Merge the layers of an image into one
    #[arg(long)]
    merged: bool,

    /// Store only the converted manifests, not the original ones
    #[arg(long)]
    only_converted: bool,

    /// Leave the index of the image as it is: converted manifests refer to the original ones instead (the referrers API of registries, or
    /// a tag in its place). With the source as the target, only they are stored. floe snapshotter finds them
    #[arg(long, conflicts_with_all = ["only_converted", "merged"])]
    referrers: bool,

    /// Make an image for containerd 2.1: with layers of the type application/vnd.oci.image.layer.v1.erofs, and without the
    /// feature erofs in platforms
    #[arg(long = "containerd-2.1")]
    containerd_2_1: bool,

    /// A recorded launch of the image, which floe record has written: each layer gets the part that is about its files, and in a registry a copy
    /// of what the launch reads of it, which mounts fetch first
    #[arg(long, value_name = "FILE", conflicts_with = "record")]
    profile: Option<PathBuf>,

    /// Run COMMAND in the image, or the program that the image names, and use what it reads as the profile. SIGINT, SIGTERM and SIGHUP end the
    /// command, not the conversion
    #[arg(long)]
    record: bool,

    /// Convert only this platform, such as linux/amd64; may be repeated [default: all]
    #[arg(long, value_name = "OS/ARCHITECTURE")]
    platform: Vec<String>,

    /// Compress with lz4, lz4hc, lzma, deflate, zstd or none, with an optional level: zstd,9 [default: zstd]
    #[arg(short = 'z', long, value_name = "ALGORITHM[,LEVEL]")]
    compress: Option<String>,

    /// The size of a compressed block [default: 64k]
    #[arg(short = 'C', long = "pcluster", value_name = "SIZE", value_parser = quantity::bytes)]
    pcluster_bytes: Option<u64>,

    /// The number of threads [default: the number of CPUs]
    #[arg(short, long, value_name = "N")]
    jobs: Option<NonZeroUsize>,

    /// The limit of file data in memory [default: 96M]
    #[arg(long, value_name = "SIZE", value_parser = quantity::bytes)]
    memory: Option<u64>,

    /// Print nothing but errors
    #[arg(short, long)]
    quiet: bool,

    /// Write the summary as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    network: NetworkArguments,

    /// The command for --record, and its arguments
    #[arg(last = true, requires = "record", value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// The summary in JSON.
#[derive(Serialize)]
struct Summary<'text> {
    digest: &'text str,
    manifests: usize,
    layers_built: usize,
    layers_reused: usize,
    bytes_before: u64,
    bytes_after: u64,
    blobs_stored: usize,
}

/// Runs the command.
///
/// # Errors
/// The image cannot be read or converted, or the target cannot be written.
pub(crate) fn run(arguments: &Arguments) -> Result<u8, Fail> {
    let mut settings = arguments.settings()?;
    let source = place(&arguments.source, arguments.source_name.as_deref())?;
    let target = place(&arguments.target, arguments.target_name.as_deref())?;
    let network = Network::new(arguments.network.options()).map_err(|error| Fail::failed(error.to_string()))?;
    let cancel = cancellation::on_signals()?;
    let mut image = SourceImage::open(&source, &network).map_err(|error| error_of(error, &cancel))?;
    if arguments.record {
        image = image.with_copies().map_err(|error| error_of(error, &cancel))?;
        settings.profile = Some(launch::record(&image, &arguments.command, &settings, &cancel)?);
        // A signal has ended the command.
        cancel.store(false, Relaxed);
    } else if let Some(path) = &arguments.profile {
        settings.profile = Some(launch::read_profile(path)?);
    }
    let closing = network.clone();
    // The error of the closed network ends the conversion, which removes its files.
    cancellation::end_after_signal(Duration::ZERO, move || {
        closing.close();
        thread::sleep(SIGNAL_PATIENCE);
        Some("interrupted".to_owned())
    })?;
    let bar = progress_bar(arguments.quiet || arguments.json);
    let converted = convert(&image, &target, &settings, &network, &cancel, &|done, total| {
        bar.set_length(total);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    let converted = converted.map_err(|error| error_of(error, &cancel))?;
    for warning in &converted.warnings {
        say!("floe: {warning}");
    }
    if arguments.quiet {
        return Ok(Exit::Done.code());
    }
    let Converted { digest, manifests, layers_built, layers_reused, bytes_before, bytes_after, blobs_stored, .. } =
        converted;
    if arguments.json {
        let summary = Summary {
            digest: &digest,
            manifests,
            layers_built,
            layers_reused,
            bytes_before,
            bytes_after,
            blobs_stored,
        };
        let text = serde_json::to_string(&summary).map_err(|error| Fail::failed(error.to_string()))?;
        return Output::print(format_args!("{text}\n"));
    }
    let (before, after) = (HumanBytes(bytes_before), HumanBytes(bytes_after));
    Output::print(format_args!(
        "{digest}: {manifests} manifests, {layers_built} layers converted, {layers_reused} reused, {before} became {after}\n"
    ))
}

/// The failure for an error of a conversion, which `cancel` may have caused.
fn error_of(error: Error, cancel: &AtomicBool) -> Fail {
    match error {
        Error::Usage(message) => Fail::usage(message),
        // The closed network causes other errors.
        _ if cancel.load(Relaxed) => Fail::failed(Error::Cancelled.to_string()).with_exit(Exit::Interrupted),
        error => Fail::failed(error.to_string()),
    }
}

fn place(text: &str, name: Option<&str>) -> Result<Place, Fail> {
    if !RemoteLocation::is_meant_by(text) {
        return Ok(Place::Local { path: PathBuf::from(text), name: name.map(str::to_owned) });
    }
    match remote::location(text)? {
        RemoteLocation::Registry(_) if name.is_some() => {
            Err(Fail::usage(format!("{text}: the URL names the image: omit --source-name and --target-name")))
        }
        RemoteLocation::Registry(reference) => Ok(Place::Registry(reference)),
        other => {
            Err(Fail::usage(format!("{other}: images of containers are in registries: oci://registry/repository:tag")))
        }
    }
}

impl Arguments {
    fn settings(&self) -> Result<Settings, Fail> {
        let pcluster_bytes = u32::try_from(self.pcluster_bytes.unwrap_or(PCLUSTER_BYTES)).unwrap_or(u32::MAX);
        let cpus = || thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        Ok(Settings {
            compression: compression(self.compress.as_deref().unwrap_or(COMPRESS_DEFAULT), pcluster_bytes)?,
            pcluster_bytes,
            is_merged: self.merged,
            for_containerd_2_1: self.containerd_2_1,
            keeps_original: !self.only_converted,
            as_referrers: self.referrers,
            platforms: self.platform.clone(),
            profile: None,
            launch_parts: launch::parts,
            jobs: self.jobs.unwrap_or_else(cpus),
            memory_bytes: usize::try_from(self.memory.unwrap_or(MEMORY_BYTES)).unwrap_or(usize::MAX),
        })
    }
}

/// The algorithm with its level; `None` is no compression.
fn compression(text: &str, pcluster_bytes: u32) -> Result<Option<Compression>, Fail> {
    if text == "none" {
        return Ok(None);
    }
    let (name, level) = text.split_once(',').map_or((text, None), |(name, level)| (name, Some(level)));
    let compressor = Compressor::named(name).ok_or_else(|| {
        let names = COMPRESSORS.map(|compressor| compressor.name).join(", ");
        Fail::usage(format!("'{name}' is unknown: use {names} or none"))
    })?;
    let wrong = || Fail::usage(format!("'{text}': a level is a number, as in zstd,9"));
    let level = level.map(|level| level.parse::<u8>().map_err(|_| wrong())).transpose()?;
    if level.is_some() && compressor.levels.is_empty() {
        return Err(Fail::usage(format!("{name} has no levels: omit the level")));
    }
    let lz4_window_bytes = NonZeroU32::new(LZ4_WINDOW_BYTES).unwrap_or(NonZeroU32::MIN);
    let settings = CompressorSettings { level, dictionary_bytes: None, lz4_window_bytes, pcluster_bytes };
    let compression = compressor.compression(&settings);
    compression.encoder().map_err(|error| Fail::usage(error.to_string()))?;
    Ok(Some(compression))
}
