//! Opens remote images.

use std::{
    ffi::OsString,
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
    Image, ImageFiles, ImageSource, NamedFiles, OpenOptions,
    remote::{ImageOptions, Outage, RemoteLocation, RemoteOptions, RemoteProcess},
};

use crate::{daemon, fail::Fail, mount_options::Settings, own_program::own_program, quantity};

/// The hidden command of the process that fetches an image for another process.
pub(crate) const FETCH_COMMAND: &str = "fetch-for-another";

/// The deadline of a mount's requests exceeds the retry time of its image's server by this much.
const DEADLINE_MARGIN: Duration = Duration::from_secs(30);

/// The heading of [`RemoteArguments`] in `--help`. Each option names it: `next_help_heading` would also apply to the options
/// that follow those of this group.
pub(crate) const HEADING: &str = "Remote images (https://, s3://, gs://, az://, oci://)";

/// Options of all connections to servers.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct NetworkArguments {
    /// The behaviour of reads while the server cannot be reached: fail with EIO after a few attempts ('eio'), or retry
    /// for a time ('wait:10m') [default: wait:60s]
    #[arg(help_heading = HEADING, long, value_name = "wait:DURATION|eio")]
    outage: Option<Outage>,

    /// Use plain HTTP for all registries; it is always used for registries on this machine
    #[arg(help_heading = HEADING, long)]
    plain_http: bool,
}

/// Options of remote images.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct RemoteArguments {
    #[command(flatten)]
    network: NetworkArguments,

    /// Refuse images whose bytes cannot be verified
    #[arg(help_heading = HEADING, long)]
    require_verified: bool,

    /// The maximum size on disk of the cache of remote images; 0 disables it [default: a tenth of the file system, at
    /// most 16 GiB]
    #[arg(help_heading = HEADING, long, value_name = "SIZE", value_parser = quantity::bytes)]
    cache_size: Option<u64>,

    /// The directory of the cache of remote images [default: /var/cache/floe for root, ~/.cache/floe]
    #[arg(help_heading = HEADING, long, value_name = "DIR")]
    cache_directory: Option<PathBuf>,
}

impl NetworkArguments {
    /// The options, with defaults for those that were not given.
    pub(crate) fn options(&self) -> RemoteOptions {
        let mut options = RemoteOptions::default();
        self.apply(&mut options);
        options
    }

    /// Adds the given options to `options`.
    fn apply(&self, options: &mut RemoteOptions) {
        if let Some(outage) = self.outage {
            options.outage = outage;
        }
        options.plain_http |= self.plain_http;
    }
}

impl RemoteArguments {
    /// Adds the given options to `options`.
    pub(crate) fn apply(&self, options: &mut ImageOptions) {
        self.network.apply(&mut options.remote);
        options.require_verified |= self.require_verified;
        if self.cache_size.is_some() {
            options.cache_bytes_max = self.cache_size;
        }
        if let Some(directory) = &self.cache_directory {
            options.cache_directory = Some(absolute(directory));
        }
    }

    /// The options, with defaults for those that were not given.
    pub(crate) fn options(&self) -> ImageOptions {
        let mut options = ImageOptions::default();
        self.apply(&mut options);
        options
    }
}

/// The absolute path: the fetching process has another working directory.
pub(crate) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Whether the image argument is a URL.
pub(crate) fn is_url(image: &Path) -> bool {
    image.to_str().is_some_and(RemoteLocation::is_meant_by)
}

/// Parses a URL on the command line. The command line's own messages would show its credentials.
///
/// # Errors
/// It is invalid; the message shows no credentials.
pub(crate) fn location(url: &str) -> Result<RemoteLocation, Fail> {
    url.parse::<RemoteLocation>().map_err(|error| Fail::usage(error.to_string()))
}

/// Removes the credentials from a URL, which need not be valid; returns a path unchanged.
pub(crate) fn without_credentials(image: &Path) -> PathBuf {
    let url = image.to_str().filter(|text| RemoteLocation::is_meant_by(text));
    url.map_or_else(|| image.to_owned(), |url| RemoteLocation::shown(url).into())
}

/// Removes the credentials from those words of a command line that are URLs, wherever they are in `message`.
pub(crate) fn without_credentials_of(words: &[OsString], message: &str) -> String {
    let words = words.iter().filter_map(|word| word.to_str());
    // An option may have its value behind '='.
    let urls = words.flat_map(|word| [Some(word), word.split_once('=').map(|(_, value)| value)]).flatten();
    let mut message = message.to_owned();
    for url in urls.filter(|url| RemoteLocation::is_meant_by(url)) {
        message = message.replace(url, &RemoteLocation::shown(url));
    }
    message
}

/// The deadline of a mount's requests. Unless the user set it, it is not below the time that reads of a remote image may take.
pub(crate) fn raised_deadline(image: &Path, settings: &Settings) -> Option<Duration> {
    let deadline = settings.mount.deadline;
    if !is_url(image) || settings.has_deadline {
        return deadline;
    }
    let patience = settings.open.remote.remote.outage.patience().checked_add(DEADLINE_MARGIN);
    deadline.zip(patience).map(|(deadline, patience)| deadline.max(patience))
}

/// Starts a process that fetches the image, if `image` is a URL.
///
/// # Errors
/// The URL is invalid, or the image cannot be opened.
pub(crate) fn start(image: &Path, options: &ImageOptions) -> Result<Option<Arc<RemoteProcess>>, Fail> {
    let Some(url) = image.to_str().filter(|text| RemoteLocation::is_meant_by(text)) else { return Ok(None) };
    let mut program = Command::new(own_program());
    // The program name selects drop-in programs, so it must be `floe`.
    program.arg0("floe").arg(FETCH_COMMAND);
    if daemon::is_background() {
        // An inherited terminal, pipe or directory would stay in use after the caller ends.
        program.stderr(Stdio::null()).current_dir("/");
    }
    match RemoteProcess::start(program, url, options) {
        Ok(process) => Ok(Some(Arc::new(process))),
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Err(Fail::usage(error.to_string())),
        Err(error) => Err(Fail::failed(error.to_string())),
    }
}

/// The files of an image that another process fetches.
pub(crate) fn named_files(process: &Arc<RemoteProcess>, options: &OpenOptions) -> NamedFiles {
    let source: Arc<dyn ImageSource> = Arc::clone(process) as Arc<dyn ImageSource>;
    NamedFiles::of_source(Path::new(&process.about().name), &source, options)
}

/// Opens an image in an unconfined process.
///
/// # Errors
/// The image cannot be opened.
pub(crate) fn open_image(image: &Path, options: &OpenOptions) -> Result<Image, Fail> {
    match start(image, &options.remote)? {
        Some(process) => {
            let files = ImageFiles::of_named(named_files(&process, options), options)?;
            Ok(Image::of(files, &options.engine)?)
        }
        None => Ok(Image::open(image, options)?),
    }
}

/// Fetches an image for the process at the other end of standard input.
///
/// # Errors
/// That process violates the protocol.
pub(crate) fn fetch() -> Result<u8, Fail> {
    let control = io::stdin().as_fd().try_clone_to_owned();
    let served = control.and_then(|control| floe::remote::serve(control, |message| say!("floe: {message}")));
    served.map(|()| 0).map_err(|error| Fail::failed(format!("this command is internal to floe: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount_options::Strictness;

    #[test]
    fn urls_are_distinguished_from_paths_and_shown_without_credentials() {
        for (image, expected) in [
            ("https://user:secret@example.org/a?token=x", Some("https://example.org/a")),
            ("https://user:secret@example.org/a b?token=x", Some("https://example.org/a b")),
            ("oci://ghcr.io/a", Some("oci://ghcr.io/a:latest")),
            ("image.erofs", None),
            ("/https:/x", None),
        ] {
            assert_eq!(is_url(Path::new(image)), expected.is_some(), "{image}");
            assert_eq!(without_credentials(Path::new(image)), Path::new(expected.unwrap_or(image)));
        }
    }

    #[test]
    fn the_deadline_follows_the_outage_unless_it_is_given() {
        for (image, options, expected) in [
            ("https://example.org/a", "ro", Some(90)),
            ("https://example.org/a", "outage=wait:10m", Some(630)),
            ("https://example.org/a", "outage=eio", Some(60)),
            ("https://example.org/a", "deadline=60s", Some(60)),
            ("https://example.org/a", "deadline=5s,outage=wait:10m", Some(5)),
            ("https://example.org/a", "deadline=off", None),
            ("a", "outage=wait:10m", Some(60)),
        ] {
            let mut settings = Settings::default();
            settings.take_list(options, Strictness::User).expect("they are known");
            let deadline = raised_deadline(Path::new(image), &settings);
            assert_eq!(deadline, expected.map(Duration::from_secs), "{image} {options}");
        }
    }
}
