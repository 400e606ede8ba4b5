//! `floe pull`: downloads a remote image into a file.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
};

use clap::Args;
use floe::remote::{Network, Pulled, RemoteLocation};
use indicatif::HumanBytes;
use tempfile::NamedTempFile;

use super::extract::progress_bar;
use crate::{exit::Exit, fail::Fail, output::Output, remote::RemoteArguments};

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
    2  wrong usage")]
pub(crate) struct Arguments {
    /// The image: https://, s3://, gs://, az:// or oci://
    #[arg(value_name = "URL")]
    location: RemoteLocation,

    /// The file to create, or a directory to create it in
    #[arg(value_name = "FILE")]
    output: PathBuf,

    /// Replace an existing file
    #[arg(short, long)]
    force: bool,

    /// Print nothing but errors
    #[arg(short, long)]
    quiet: bool,

    #[command(flatten)]
    remote: RemoteArguments,
}

/// Runs the command.
///
/// # Errors
/// The image cannot be fetched or verified, or the file cannot be created.
pub(crate) fn run(arguments: &Arguments) -> Result<u8, Fail> {
    let output = output_path(&arguments.location, &arguments.output);
    let failed = |error: io::Error| Fail::failed(format!("{}: {error}", output.display()));
    if !arguments.force && output.symlink_metadata().is_ok() {
        return Err(Fail::failed(format!("{} already exists; --force replaces it", output.display())));
    }
    let directory = output.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let part = NamedTempFile::new_in(directory).map_err(failed)?;
    let options = arguments.remote.options();
    let network = Network::new(options.remote).map_err(failed)?;
    let bar = progress_bar(arguments.quiet);
    let pulled = network.pull(&arguments.location, part.as_file(), &|done, len| {
        bar.set_length(len);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    let pulled = pulled.map_err(|error| Fail::failed(error.to_string()))?;
    if options.require_verified && !pulled.is_verified {
        return Err(Fail::failed(format!("{}: no digests are published to verify it", pulled.name)));
    }
    let part = if pulled.compression == Some("zstd") { decompressed(&part, directory).map_err(failed)? } else { part };
    finish(part, &output, arguments.force).map_err(failed)?;
    if arguments.quiet {
        return Ok(Exit::Done.code());
    }
    let Pulled { name, len, is_verified, .. } = pulled;
    let verified = if is_verified { "verified" } else { "unverified" };
    Output::print(format_args!("{}: {} from {name}, {verified}\n", output.display(), HumanBytes(len)))
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

fn decompressed(part: &NamedTempFile, directory: &Path) -> io::Result<NamedTempFile> {
    let plain = NamedTempFile::new_in(directory)?;
    let mut decoder = zstd::Decoder::new(File::open(part.path())?)?;
    io::copy(&mut decoder, &mut plain.as_file())?;
    Ok(plain)
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
