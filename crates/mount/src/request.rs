//! A request to mount an image.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use crate::{
    failure::Failure,
    launch::ProfileChoice,
    log::Remarks,
    options::Settings,
    remote::{self, raised_deadline},
    target::Target,
};

/// A request to mount an image.
pub struct Request {
    /// The image: a file, a block device, or a URL.
    pub image: PathBuf,
    /// The directory to mount on; `/dev/fd/N` for an open descriptor of `/dev/fuse`.
    pub directory: PathBuf,
    /// How to open, mount and serve it.
    pub settings: Settings,
    /// Whether standard error is closed once the mount works.
    pub in_background: bool,
    /// Unmount after this time without use.
    pub idle: Option<Duration>,
    /// A pipe that gets a message when the mount works.
    pub notify_pipe: Option<PathBuf>,
    /// Called with messages for the user while the mount is made and served.
    pub remarks: Remarks,
}

impl Request {
    /// A mount in the foreground that stays until it is unmounted. Its remarks are ignored.
    pub fn new(image: impl Into<PathBuf>, directory: impl Into<PathBuf>, settings: Settings) -> Self {
        let (image, directory) = (image.into(), directory.into());
        let remarks: Remarks = Arc::new(|_| ());
        Self { image, directory, settings, in_background: false, idle: None, notify_pipe: None, remarks }
    }

    /// The files that are read.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let profile = match &self.settings.profile {
            ProfileChoice::File(path) => Some(path),
            _ => None,
        };
        [&self.image].into_iter().chain(&self.settings.open.devices).chain(profile).map(PathBuf::as_path)
    }

    /// The image as users see it: an absolute path, or a URL without credentials.
    pub fn shown_image(&self) -> PathBuf {
        absolute(&self.image)
    }

    /// The settings in effect for a mount on `target`.
    ///
    /// # Errors
    /// Settings contradict each other.
    pub(crate) fn effective_settings(&self, target: &Target) -> Result<Settings, Failure> {
        let given = &self.settings;
        given.check_profile()?;
        let mut settings = match target.taken() {
            Some(taken) => given.with_tuned(&taken.state.tuned),
            None => given.clone(),
        };
        if target.taken().is_some() || given.subdirectory.is_some() {
            // A takeover follows the launch, and a subdirectory has no profile.
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
