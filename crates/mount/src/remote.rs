//! Remote images: their URLs, and the process that fetches them.

use std::{
    io,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use floe::{
    Image, ImageFiles, ImageSource, NamedFiles, OpenError, OpenOptions,
    remote::{ImageOptions, RemoteLocation, RemoteProcess},
};

use crate::{
    daemon::{self, own_program},
    failure::Failure,
    options::Settings,
};

/// The hidden command of the program `floe` that fetches an image for another process.
pub const FETCH_COMMAND: &str = "fetch-for-another";

/// The hidden command of the program `floe` that fetches images for a service.
pub const FETCH_SEVERAL_COMMAND: &str = "fetch-for-others";

/// The deadline of a mount's requests exceeds the retry time of its image's server by this much.
const DEADLINE_MARGIN: Duration = Duration::from_secs(30);

/// The absolute path: the fetching process has another working directory.
pub fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Whether the image argument is a URL.
pub fn is_url(image: &Path) -> bool {
    image.to_str().is_some_and(RemoteLocation::is_meant_by)
}

/// Whether the image argument is a URL with a password or a query, which may contain a signature.
pub(crate) fn has_secrets(image: &Path) -> bool {
    image.to_str().is_some_and(|text| RemoteLocation::is_meant_by(text) && RemoteLocation::has_secrets(text))
}

/// Removes the credentials from a URL, which need not be valid; returns a path unchanged.
pub fn without_credentials(image: &Path) -> PathBuf {
    let url = image.to_str().filter(|text| RemoteLocation::is_meant_by(text));
    url.map_or_else(|| image.to_owned(), |url| RemoteLocation::shown(url).into())
}

/// The deadline of a mount's requests. Unless the user set it, it is not below the time that reads of a remote image may take.
pub(crate) fn raised_deadline(image: &Path, settings: &Settings) -> Option<Duration> {
    let deadline = settings.mount.deadline;
    let is_remote = is_url(image) || settings.open.devices.iter().any(|device| is_url(device));
    if !is_remote || settings.has_deadline {
        return deadline;
    }
    let patience = settings.open.remote.remote.outage.patience().checked_add(DEADLINE_MARGIN);
    deadline.zip(patience).map(|(deadline, patience)| deadline.max(patience))
}

/// The processes that fetch an image and its extra devices, as far as their names are URLs.
#[derive(Default)]
pub struct RemoteFiles {
    /// That of the image itself.
    pub image: Option<Arc<RemoteProcess>>,
    /// Those of the devices, in the order of [`OpenOptions::devices`].
    devices: Vec<Option<Arc<RemoteProcess>>>,
}

impl RemoteFiles {
    /// An image that a process fetches, without extra devices.
    pub(crate) fn of_image(process: &Arc<RemoteProcess>) -> Self {
        Self { image: Some(Arc::clone(process)), devices: Vec::new() }
    }

    /// Starts the processes.
    ///
    /// # Errors
    /// A URL is invalid, or what it names cannot be opened.
    pub fn start(image: &Path, options: &OpenOptions) -> Result<Self, Failure> {
        let devices = options.devices.iter().map(|device| start(device, &options.remote));
        Ok(Self { image: start(image, &options.remote)?, devices: devices.collect::<Result<_, _>>()? })
    }

    /// The files of the image at `path`: those that the processes fetch, and local ones. Returns also the options with the names
    /// of the devices as users see them.
    ///
    /// # Errors
    /// The image cannot be opened.
    pub(crate) fn named_files(
        &self,
        path: &Path,
        options: &OpenOptions,
    ) -> (Result<NamedFiles, OpenError>, OpenOptions) {
        let devices = options.devices.iter().map(|device| without_credentials(device)).collect();
        let options = OpenOptions { devices, ..options.clone() };
        let source = |process: &Arc<RemoteProcess>| Arc::clone(process) as Arc<dyn ImageSource>;
        let mut named = match &self.image {
            Some(process) => Ok(NamedFiles::of_source(Path::new(&process.about().name), &source(process), &options)),
            None => NamedFiles::open(path, &options),
        };
        if let Ok(named) = &mut named {
            let devices = self.devices.iter().enumerate();
            let devices = devices.filter_map(|(index, process)| Some((index, process.as_ref()?)));
            devices.for_each(|(index, process)| named.set_device(index, source(process)));
        }
        (named, options)
    }
}

/// Starts a process that fetches a file, if `file` is a URL.
fn start(file: &Path, options: &ImageOptions) -> Result<Option<Arc<RemoteProcess>>, Failure> {
    let Some(url) = file.to_str().filter(|text| RemoteLocation::is_meant_by(text)) else { return Ok(None) };
    let mut program = Command::new(own_program());
    // The program name selects drop-in programs, so it must be `floe`.
    program.arg0("floe").arg(FETCH_COMMAND);
    if daemon::is_background() {
        // An inherited terminal, pipe or directory would stay in use after the caller ends.
        program.stderr(Stdio::null()).current_dir("/");
    }
    match RemoteProcess::start(program, url, options) {
        Ok(process) => Ok(Some(Arc::new(process))),
        Err(error) => Err(failure(error)),
    }
}

/// The failure to open a remote image.
pub(crate) fn failure(error: io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::InvalidInput => Failure::usage(error.to_string()),
        _ => Failure::failed(error.to_string()),
    }
}

/// Opens an image in an unconfined process.
///
/// # Errors
/// The image cannot be opened.
pub fn open_image(image: &Path, options: &OpenOptions) -> Result<Image, Failure> {
    let (named, options) = RemoteFiles::start(image, options)?.named_files(image, options);
    Ok(Image::of(ImageFiles::of_named(named?, &options)?, &options)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Strictness;

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
            ("a", "outage=wait:10m,device=https://example.org/b", Some(630)),
        ] {
            let mut settings = Settings::default();
            settings.take_list(options, Strictness::User).expect("they are known");
            let deadline = raised_deadline(Path::new(image), &settings);
            assert_eq!(deadline, expected.map(Duration::from_secs), "{image} {options}");
        }
    }
}
