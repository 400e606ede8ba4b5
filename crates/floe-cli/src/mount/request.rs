//! A request to mount an image.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use super::target::Target;
use crate::{
    fail::Fail,
    launch::ProfileChoice,
    mount_options::Settings,
    remote::{self, raised_deadline},
};

/// A request to mount an image.
pub(crate) struct Request {
    /// The image: a file, a block device, or a URL.
    pub(crate) image: PathBuf,
    /// The directory to mount on; `/dev/fd/N` for an open descriptor of `/dev/fuse`.
    pub(crate) directory: PathBuf,
    pub(crate) settings: Settings,
    pub(crate) in_background: bool,
    /// Unmount after this time without use.
    pub(crate) idle: Option<Duration>,
    /// A pipe that gets a message when the mount works.
    pub(crate) notify_pipe: Option<PathBuf>,
}

impl Request {
    /// A mount in the foreground that stays until it is unmounted.
    pub(crate) fn new(image: impl Into<PathBuf>, directory: impl Into<PathBuf>, settings: Settings) -> Self {
        let (image, directory) = (image.into(), directory.into());
        Self { image, directory, settings, in_background: false, idle: None, notify_pipe: None }
    }

    /// The files that are read.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Path> {
        let profile = match &self.settings.profile {
            ProfileChoice::File(path) => Some(path),
            _ => None,
        };
        [&self.image].into_iter().chain(&self.settings.open.devices).chain(profile).map(PathBuf::as_path)
    }

    /// The image as users see it: an absolute path, or a URL without credentials.
    pub(crate) fn shown_image(&self) -> PathBuf {
        absolute(&self.image)
    }

    /// The settings in effect for a mount on `target`.
    ///
    /// # Errors
    /// Settings contradict each other.
    pub(super) fn effective_settings(&self, target: &Target) -> Result<Settings, Fail> {
        let given = &self.settings;
        let has_profile = matches!(given.profile, ProfileChoice::File(_) | ProfileChoice::Learn);
        if given.subdirectory.is_some() && has_profile {
            return Err(Fail::usage("a profile is of the whole image: omit subdir=, or profile= and --learn"));
        }
        let mut settings = match target.taken() {
            Some(taken) => given.with_tuned(&taken.state.tuned),
            None => given.clone(),
        };
        if target.taken().is_some() || given.subdirectory.is_some() {
            // The launch happened before a takeover.
            settings.profile = ProfileChoice::Off;
        }
        let source = || self.shown_image().to_string_lossy().into_owned();
        settings.mount.kernel.source = settings.source.clone().unwrap_or_else(source);
        settings.mount.deadline = raised_deadline(&self.image, &settings);
        Ok(settings)
    }
}

/// Makes a path absolute, or removes the credentials from a URL.
fn absolute(path: &Path) -> PathBuf {
    if remote::is_url(path) {
        return remote::without_credentials(path);
    }
    path.canonicalize().or_else(|_| std::path::absolute(path)).unwrap_or_else(|_| path.to_owned())
}
