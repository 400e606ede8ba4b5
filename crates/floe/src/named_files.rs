//! The files of an image, opened by their names.

use std::{
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::Arc,
};

use floe_image::ImageSource;
use floe_source::FileSource;
use rustix::fs::{Mode, OFlags, open};

use crate::{OpenError, OpenOptions};

/// The files that a user named for an image, open, before the image is parsed.
///
/// A process that confines itself opens them before that: a path such as `/proc/PID/fd/N` leads nowhere from inside a sandbox.
/// [`ImageFiles::of_named`](crate::ImageFiles::of_named) follows.
pub struct NamedFiles {
    pub(crate) name: PathBuf,
    pub(crate) image: Arc<dyn ImageSource>,
    /// The files of [`OpenOptions::devices`]. Errors count only if the image needs the device.
    pub(crate) devices: Vec<io::Result<Arc<dyn ImageSource>>>,
    /// [`OpenOptions::device_directory`].
    pub(crate) device_directory: Option<io::Result<OwnedFd>>,
}

impl NamedFiles {
    /// Opens the file `path` and the devices that `options` name.
    ///
    /// # Errors
    /// The image is neither a regular file nor a block device, or cannot be opened.
    pub fn open(path: &Path, options: &OpenOptions) -> Result<Self, OpenError> {
        let image = open_file(path).map_err(|error| OpenError::File { path: path.to_owned(), error })?;
        Ok(Self::of_source(path, &image, options))
    }

    /// Opens the devices that `options` name, for an image that is already open. Errors call the image `name`.
    pub fn of_source(name: &Path, image: &Arc<dyn ImageSource>, options: &OpenOptions) -> Self {
        let open_directory = |path: &PathBuf| -> io::Result<OwnedFd> {
            Ok(open(path, OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
        };
        Self {
            name: name.to_owned(),
            image: Arc::clone(image),
            devices: options.devices.iter().map(|path| open_file(path)).collect(),
            device_directory: options.device_directory.as_ref().map(open_directory),
        }
    }
}

fn open_file(path: &Path) -> io::Result<Arc<dyn ImageSource>> {
    Ok(Arc::new(FileSource::open(path)?))
}
