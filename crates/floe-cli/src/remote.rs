//! Images that are somewhere else.

use std::{
    io,
    os::fd::AsFd,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use clap::Args;
use floe::{
    Image, ImageFiles, ImageSource, OpenOptions,
    remote::{ImageOptions, Outage, RemoteLocation, RemoteProcess},
};
use floe_fuse::MountOptions;

use crate::{daemon, fail::Fail, quantity};

/// The command that a process of this program runs as, which fetches an image for another.
pub(crate) const FETCH_COMMAND: &str = "fetch-for-another";

/// How much longer than its image's server a mount lets a request wait.
const DEADLINE_MARGIN: Duration = Duration::from_secs(30);

/// How images are read that are somewhere else.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Remote images (https://, s3://, gs://, az://, oci://)")]
pub(crate) struct RemoteArguments {
    /// What reads do while the server cannot be reached: 'eio', or wait as long as 'wait:10m' says [default: wait:60s]
    #[arg(long, value_name = "wait:TIME|eio")]
    outage: Option<Outage>,

    /// Speak to all registries without TLS; those on this machine are spoken to so anyway
    #[arg(long)]
    plain_http: bool,

    /// Refuse images whose bytes cannot be verified
    #[arg(long)]
    require_verified: bool,

    /// The most bytes that the cache of remote images may take on the disk; 0: nothing is cached [default: a tenth of the
    /// file system, at most 16 GiB]
    #[arg(long, value_name = "SIZE", value_parser = quantity::bytes)]
    cache_size: Option<u64>,

    /// The directory of the cache of remote images [default: /var/cache/floe for root, ~/.cache/floe]
    #[arg(long, value_name = "DIR")]
    cache_directory: Option<PathBuf>,
}

impl RemoteArguments {
    /// Puts what was given into the options.
    pub(crate) fn apply(&self, options: &mut ImageOptions) {
        if let Some(outage) = self.outage {
            options.remote.outage = outage;
        }
        options.remote.plain_http |= self.plain_http;
        options.require_verified |= self.require_verified;
        if self.cache_size.is_some() {
            options.cache_bytes_max = self.cache_size;
        }
        if let Some(directory) = &self.cache_directory {
            options.cache_directory = Some(absolute(directory));
        }
    }

    /// The options, with the defaults of what was not given.
    pub(crate) fn options(&self) -> ImageOptions {
        let mut options = ImageOptions::default();
        self.apply(&mut options);
        options
    }
}

/// The path from the root: the process that fetches has another working directory.
pub(crate) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Whether what was given in the place of a file is a URL.
pub(crate) fn is_url(image: &Path) -> bool {
    image.to_str().is_some_and(RemoteLocation::is_meant_by)
}

/// A URL without credentials; a path as it is.
pub(crate) fn without_credentials(image: &Path) -> PathBuf {
    let location = image.to_str().filter(|text| RemoteLocation::is_meant_by(text)).map(str::parse::<RemoteLocation>);
    match location {
        Some(Ok(location)) => location.to_string().into(),
        _ => image.to_owned(),
    }
}

/// Has requests of a mount wait as long as reads of its image may, where the user has not said how long.
pub(crate) fn raise_deadline(image: &Path, options: &ImageOptions, mount: &mut MountOptions) {
    let is_default = mount.deadline == MountOptions::default().deadline;
    if is_url(image) && is_default {
        let patience = options.remote.outage.patience().checked_add(DEADLINE_MARGIN);
        mount.deadline = mount.deadline.zip(patience).map(|(deadline, patience)| deadline.max(patience));
    }
}

/// Starts a process that fetches the image, where `image` is a URL.
///
/// # Errors
/// The URL is none, or the image cannot be opened.
pub(crate) fn start(image: &Path, options: &ImageOptions) -> Result<Option<Arc<RemoteProcess>>, Fail> {
    let Some(url) = image.to_str().filter(|text| RemoteLocation::is_meant_by(text)) else { return Ok(None) };
    let mut program = Command::new("/proc/self/exe");
    // The name decides what the program is: it may stand in for others.
    program.arg0("floe").arg(FETCH_COMMAND);
    if daemon::is_background() {
        // What holds on to a terminal, a pipe or a directory would hold up whoever called.
        program.stderr(Stdio::null()).current_dir("/");
    }
    match RemoteProcess::start(program, url, options) {
        Ok(process) => Ok(Some(Arc::new(process))),
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Err(Fail::usage(error.to_string())),
        Err(error) => Err(Fail::failed(error.to_string())),
    }
}

/// The files of an image that another process fetches.
///
/// # Errors
/// It is no image.
pub(crate) fn files(process: &Arc<RemoteProcess>, options: &OpenOptions) -> Result<ImageFiles, floe::OpenError> {
    let source: Arc<dyn ImageSource> = Arc::clone(process) as Arc<dyn ImageSource>;
    ImageFiles::of_source(Path::new(&process.about().name), &source, options)
}

/// Opens an image in a process that is not confined.
///
/// # Errors
/// It cannot be opened.
pub(crate) fn open_image(image: &Path, options: &OpenOptions) -> Result<Image, Fail> {
    match start(image, &options.remote)? {
        Some(process) => Ok(Image::of(files(&process, options)?, &options.engine)?),
        None => Ok(Image::open(image, options)?),
    }
}

/// Fetches an image for the process at the other end of standard input.
///
/// # Errors
/// It does not speak as it should.
pub(crate) fn fetch() -> Result<u8, Fail> {
    let control = io::stdin().as_fd().try_clone_to_owned();
    let served = control.and_then(|control| floe::remote::serve(control, |message| eprintln!("floe: {message}")));
    served.map(|()| 0).map_err(|error| Fail::failed(format!("this command is for floe itself: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_told_from_paths_and_shown_without_credentials() {
        for (image, expected) in [
            ("https://user:secret@example.org/a?token=x", Some("https://example.org/a")),
            ("oci://ghcr.io/a", Some("oci://ghcr.io/a:latest")),
            ("image.erofs", None),
            ("/https:/x", None),
        ] {
            assert_eq!(is_url(Path::new(image)), expected.is_some(), "{image}");
            assert_eq!(without_credentials(Path::new(image)), Path::new(expected.unwrap_or(image)));
        }
    }
}
