//! The files of an image, open.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use floe_engine::{Engine, EngineOptions, WorkerMode};
use floe_image::ImageSource;

use crate::{
    Format, OpenError, OpenOptions,
    devices::{AddedDevices, add_devices},
    sources,
};

/// The files of an image, open: of its content no more was read than tells which files they are. No thread was started.
///
/// A process that is to be confined before it reads the image opens its files first: [`Image::of`](crate::Image::of) and
/// [`check_files`](crate::check_files) open nothing any more.
pub struct ImageFiles {
    pub(crate) path: PathBuf,
    pub(crate) source: Arc<dyn ImageSource>,
    pub(crate) offset: u64,
    pub(crate) format: Format,
    /// The extra devices; an error where the image does not say in a sound way what they are.
    pub(crate) devices: Result<AddedDevices, OpenError>,
}

impl ImageFiles {
    /// Opens the file `path` and those that belong to it.
    ///
    /// # Errors
    /// A file cannot be read, is no EROFS or SquashFS image, or there are more or fewer than the image needs.
    pub fn open(path: &Path, options: &OpenOptions) -> Result<Self, OpenError> {
        let (source, offset, format) = sources::open_image(path, options.offset)?;
        let devices = match format {
            Format::Erofs => find_devices(path, &source, options),
            Format::Squashfs if options.devices.is_empty() => Ok(AddedDevices::default()),
            Format::Squashfs => {
                let given_count = options.devices.len();
                return Err(OpenError::TooManyDevices { path: path.to_owned(), given_count, expected_count: 0 });
            }
        };
        match devices {
            Err(error) if !matches!(error, OpenError::Image { .. }) => Err(error),
            devices => Ok(Self { path: path.to_owned(), source, offset, format, devices }),
        }
    }
}

/// Reads the device table on this thread, and opens what it names.
fn find_devices(path: &Path, source: &Arc<dyn ImageSource>, options: &OpenOptions) -> Result<AddedDevices, OpenError> {
    let options_of_engine = EngineOptions {
        workers: WorkerMode::Inline,
        reserved_pages: 0,
        read_around: false,
        spill_file_bytes: 0,
        ..options.engine.clone()
    };
    let engine = Engine::new(vec![Arc::clone(source)], &options_of_engine)
        .map_err(|error| OpenError::Image { path: path.to_owned(), error })?;
    add_devices(&engine, path, options)
}
