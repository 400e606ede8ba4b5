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
    Image, ImageFiles, ImageSource, NamedFiles, OpenOptions,
    remote::{ImageOptions, RemoteLocation, RemoteProcess},
};

use crate::{
    daemon::{self, own_program},
    failure::Failure,
    options::Settings,
};

/// The hidden command of the program `floe` that fetches an image for another process.
pub const FETCH_COMMAND: &str = "fetch-for-another";

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

/// Removes the credentials from a URL, which need not be valid; returns a path unchanged.
pub fn without_credentials(image: &Path) -> PathBuf {
    let url = image.to_str().filter(|text| RemoteLocation::is_meant_by(text));
    url.map_or_else(|| image.to_owned(), |url| RemoteLocation::shown(url).into())
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
pub fn start(image: &Path, options: &ImageOptions) -> Result<Option<Arc<RemoteProcess>>, Failure> {
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
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Err(Failure::usage(error.to_string())),
        Err(error) => Err(Failure::failed(error.to_string())),
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
pub fn open_image(image: &Path, options: &OpenOptions) -> Result<Image, Failure> {
    match start(image, &options.remote)? {
        Some(process) => {
            let files = ImageFiles::of_named(named_files(&process, options), options)?;
            Ok(Image::of(files, options)?)
        }
        None => Ok(Image::open(image, options)?),
    }
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
        ] {
            let mut settings = Settings::default();
            settings.take_list(options, Strictness::User).expect("they are known");
            let deadline = raised_deadline(Path::new(image), &settings);
            assert_eq!(deadline, expected.map(Duration::from_secs), "{image} {options}");
        }
    }
}
