//! Opens remote images.

use std::{ffi::OsString, io, os::fd::AsFd, path::PathBuf};

use clap::Args;
use floe::remote::{ImageOptions, Outage, RemoteLocation, RemoteOptions};
pub(crate) use floe_mount::remote::{FETCH_COMMAND, FETCH_SEVERAL_COMMAND, is_url, open_image, without_credentials};
use floe_mount::{quantity, remote::absolute};

use crate::fail::Fail;

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

    /// A file with credentials in the form of docker's config.json, which is searched before those of docker and Podman
    #[arg(help_heading = HEADING, long, value_name = "FILE")]
    auth_file: Option<PathBuf>,

    /// A mirror of all registries that is asked first, such as one of Dragonfly or Spegel on this machine; may be repeated
    #[arg(help_heading = HEADING, long, value_name = "URL")]
    mirror: Vec<String>,
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
        if let Some(file) = &self.auth_file {
            options.auth_file = Some(absolute(file));
        }
        options.mirrors.extend(self.mirror.iter().cloned());
    }

    /// The arguments that pass these options to another command, except for the file with credentials.
    fn command_line(&self) -> Vec<OsString> {
        let outage = self.outage.map(|outage| format!("--outage={outage}").into());
        let plain_http = self.plain_http.then(|| "--plain-http".into());
        let mirrors = self.mirror.iter().map(|url| format!("--mirror={url}").into());
        outage.into_iter().chain(plain_http).chain(mirrors).collect()
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

    /// The arguments that pass these options to another command, except for the file with credentials.
    pub(crate) fn command_line(&self) -> Vec<OsString> {
        let mut words = self.network.command_line();
        words.extend(self.require_verified.then(|| "--require-verified".into()));
        words.extend(self.cache_size.map(|bytes| format!("--cache-size={bytes}").into()));
        if let Some(directory) = &self.cache_directory {
            words.extend(["--cache-directory".into(), absolute(directory).into()]);
        }
        words
    }

    /// Those that were given, in the notation of `-o`.
    pub(crate) fn list(&self) -> Vec<String> {
        let Self { network, require_verified, cache_size, cache_directory } = self;
        let NetworkArguments { outage, plain_http, auth_file, mirror } = network;
        let escaped = |text: &str| text.replace('\\', r"\\").replace(',', r"\,").replace('"', "\\\"");
        let path = |path: &PathBuf| escaped(&absolute(path).to_string_lossy());
        [
            outage.map(|outage| format!("outage={outage}")),
            plain_http.then(|| "plain-http".to_owned()),
            auth_file.as_ref().map(|file| format!("auth-file={}", path(file))),
            require_verified.then(|| "require-verified".to_owned()),
            cache_size.map(|bytes| format!("cache-size={bytes}")),
            cache_directory.as_ref().map(|directory| format!("cache-directory={}", path(directory))),
        ]
        .into_iter()
        .flatten()
        .chain(mirror.iter().map(|url| format!("mirror={}", escaped(url))))
        .collect()
    }

    /// The options, with defaults for those that were not given.
    pub(crate) fn options(&self) -> ImageOptions {
        let mut options = ImageOptions::default();
        self.apply(&mut options);
        options
    }
}

/// Parses a URL on the command line. The command line's own messages would show its credentials.
///
/// # Errors
/// It is invalid; the message shows no credentials.
pub(crate) fn location(url: &str) -> Result<RemoteLocation, Fail> {
    url.parse::<RemoteLocation>().map_err(|error| Fail::usage(error.to_string()))
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

/// Fetches images for the service at the other end of standard input, and its processes.
///
/// # Errors
/// The service violates the protocol.
pub(crate) fn fetch_several() -> Result<u8, Fail> {
    // It is no process that reads images.
    let _ = rustix::thread::set_name(c"floe-fetch");
    let orders = io::stdin().as_fd().try_clone_to_owned();
    let served = orders.and_then(|orders| floe::remote::serve_several(orders, |message| say!("floe: {message}")));
    served.map_err(|error| Fail::failed(format!("this command is internal to floe: {error}")))?;
    // Threads may still wait for messages.
    std::process::exit(0)
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
