//! `floe pull`: downloads a remote image into a file. A signal removes unfinished files.

use std::{
    fs::{self, File},
    io::{self, Read},
    mem,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use clap::Args;
use floe::remote::{Network, Pulled, RemoteLocation};
use floe_image::ShownName;
use floe_mount::quantity;
use floe_sync::Mutex;
use indicatif::HumanBytes;
use tempfile::NamedTempFile;

use super::extract::progress_bar;
use crate::{
    cancellation,
    fail::{Exit, Fail},
    output::Output,
    remote::{self, NetworkArguments},
};

/// The default of `--size-max`. A small layer can decompress to any size.
const SIZE_MAX_DEFAULT: u64 = 64 << 30;

/// Download a remote image into a file
///
/// The bytes are compared with the digest of the layer or with the digest table, and the file gets its name only if all
/// of them match. A layer that is compressed with zstd as a whole is decompressed.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    floe pull oci://ghcr.io/team/system:v1 system.erofs\n  \
    floe pull https://example.org/images/system.erofs .\n\n\
    Exit codes:\n  \
    0  the file is complete\n  \
    1  the download failed, and there is no file\n  \
    2  wrong usage\n  \
    130  a signal ended it, and there is no file")]
pub(crate) struct Arguments {
    /// The image: https://, s3://, gs://, az:// or oci://
    #[arg(value_name = "URL")]
    location: String,

    /// The file to create, or a directory to create it in
    #[arg(value_name = "FILE")]
    output: PathBuf,

    /// Replace an existing file
    #[arg(short, long)]
    force: bool,

    /// The maximum size of a file that is decompressed [default: 64G]
    #[arg(long, value_name = "SIZE", value_parser = quantity::bytes)]
    size_max: Option<u64>,

    /// Print nothing but errors
    #[arg(short, long)]
    quiet: bool,

    #[command(flatten)]
    network: NetworkArguments,

    /// Refuse images whose bytes cannot be verified
    #[arg(help_heading = remote::HEADING, long)]
    require_verified: bool,
}

/// Runs the command.
///
/// # Errors
/// The image cannot be fetched or verified, or the file cannot be created.
pub(crate) fn run(arguments: &Arguments) -> Result<u8, Fail> {
    let location = remote::location(&arguments.location)?;
    let output = output_path(&location, &arguments.output);
    let failed = |error: io::Error| Fail::failed(format!("{}: {error}", output.shown()));
    if !arguments.force && output.symlink_metadata().is_ok() {
        return Err(Fail::failed(format!("{} already exists; --force replaces it", output.shown())));
    }
    let directory = output.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let parts = Parts::default();
    let to_remove = parts.clone();
    cancellation::end_after_signal(Duration::ZERO, move || {
        to_remove.remove_all();
        Some("interrupted".to_owned())
    })?;
    let part = parts.create_in(directory).map_err(failed)?;
    let network = Network::new(arguments.network.options()).map_err(failed)?;
    let bar = progress_bar(arguments.quiet);
    let pulled = network.pull(&location, part.as_file(), &|done, len| {
        bar.set_length(len);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    let pulled = pulled.map_err(|error| Fail::failed(error.to_string()))?;
    if arguments.require_verified && !pulled.is_verified {
        return Err(Fail::failed(format!("{}: no digests are published to verify it", pulled.name)));
    }
    let part = if pulled.compression == Some("zstd") {
        let plain = parts.create_in(directory).map_err(failed)?;
        decompress(&part, &plain, arguments.size_max.unwrap_or(SIZE_MAX_DEFAULT)).map_err(failed)?;
        plain
    } else {
        part
    };
    finish(part, &output, arguments.force).map_err(failed)?;
    if arguments.quiet {
        return Ok(Exit::Done.code());
    }
    let Pulled { name, len, is_verified, .. } = pulled;
    let verified = if is_verified { "verified" } else { "unverified" };
    Output::print(format_args!("{}: {} from {name}, {verified}\n", output.shown(), HumanBytes(len)))
}

/// Gives the file its name, and the permissions of a new file.
fn finish(part: NamedTempFile, output: &Path, replaces: bool) -> io::Result<()> {
    let umask = rustix::process::umask(rustix::fs::Mode::empty());
    rustix::process::umask(umask);
    rustix::fs::fchmod(part.as_file(), rustix::fs::Mode::from_raw_mode(0o666).difference(umask))?;
    part.as_file().sync_all()?;
    let named = if replaces { part.persist(output) } else { part.persist_noclobber(output) };
    named.map(drop).map_err(|error| error.error)
}

/// Decompresses a file into an empty one of at most `bytes_max` bytes.
fn decompress(part: &NamedTempFile, plain: &NamedTempFile, bytes_max: u64) -> io::Result<()> {
    let decoder = zstd::Decoder::new(File::open(part.path())?)?;
    let written = io::copy(&mut decoder.take(bytes_max.saturating_add(1)), &mut plain.as_file())?;
    if written > bytes_max {
        let limit = quantity::exact(bytes_max);
        return Err(io::Error::other(format!("the layer decompresses to more than {limit}: --size-max permits more")));
    }
    Ok(())
}

/// The path of the created file: if `output` is a directory, the file gets the image's name.
fn output_path(location: &RemoteLocation, output: &Path) -> PathBuf {
    if !output.is_dir() {
        return output.to_owned();
    }
    let name = match location {
        RemoteLocation::Registry(reference) => reference.repository.clone(),
        other => other.to_string(),
    };
    let name = name.rsplit('/').find(|part| !part.is_empty()).unwrap_or("image").to_owned();
    output.join(if matches!(location, RemoteLocation::Registry(_)) { format!("{name}.image") } else { name })
}

/// The unfinished files of a download. Each is removed when it is dropped, and all are removed before the process ends by a
/// signal, which drops nothing.
#[derive(Clone, Default)]
struct Parts {
    paths: Arc<Mutex<Vec<PathBuf>>>,
}

impl Parts {
    /// Creates an empty file in a directory.
    ///
    /// # Errors
    /// The file cannot be created.
    fn create_in(&self, directory: &Path) -> io::Result<NamedTempFile> {
        // Held until the file is noted, so that no signal leaves it behind.
        let mut paths = self.paths.lock();
        let part = NamedTempFile::new_in(directory)?;
        paths.push(part.path().to_owned());
        Ok(part)
    }

    /// Removes all files. No others can be created from now on: a thread that tries to waits for the end of the process.
    fn remove_all(&self) {
        let mut paths = self.paths.lock();
        for path in paths.drain(..) {
            // A finished file has another name.
            let _ = fs::remove_file(path);
        }
        mem::forget(paths);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_in_a_directory_get_the_name_of_the_image() {
        let directory = tempfile::tempdir().expect("a directory");
        for (url, expected) in [
            ("https://example.org/a/system.erofs?x=y", "system.erofs"),
            ("s3://bucket/a/b.squashfs", "b.squashfs"),
            ("oci://ghcr.io/team/system:v1", "system.image"),
        ] {
            let location = url.parse().expect("a URL");
            assert_eq!(output_path(&location, directory.path()), directory.path().join(expected));
            assert_eq!(output_path(&location, Path::new("/no/such/x")), Path::new("/no/such/x"));
        }
    }
}
