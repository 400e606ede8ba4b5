//! The open files of an image.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use floe_engine::{Engine, EngineOptions, WorkerMode};
use floe_erofs::SuperblockChecksum;
use floe_image::ImageSource;

use crate::{
    Format, OpenError, OpenOptions,
    devices::{AddedDevices, add_devices},
    sources,
};

/// The open files of an image. Opening them reads only the content that identifies the files, and starts no thread.
///
/// A process that confines itself before it reads the image opens these files first: [`Image::of`](crate::Image::of)
/// and [`check_files`](crate::check_files) open nothing further.
pub struct ImageFiles {
    pub(crate) path: PathBuf,
    pub(crate) source: Arc<dyn ImageSource>,
    pub(crate) offset: u64,
    pub(crate) format: Format,
    pub(crate) superblock_checksum: SuperblockChecksum,
    /// The extra devices, or an error if the image's device table is invalid.
    pub(crate) devices: Result<AddedDevices, OpenError>,
}

impl ImageFiles {
    /// Opens the file `path` and the extra devices of the image.
    ///
    /// # Errors
    /// A file cannot be read or is not an EROFS or SquashFS image, or there are more or fewer extra devices than the image
    /// needs.
    pub fn open(path: &Path, options: &OpenOptions) -> Result<Self, OpenError> {
        Self::found(path, sources::open_image(path, options.offset)?, options)
    }

    /// Like [`ImageFiles::open`], for an image that is already open. Errors call the image `name`.
    ///
    /// # Errors
    /// As [`ImageFiles::open`].
    pub fn of_source(name: &Path, source: &Arc<dyn ImageSource>, options: &OpenOptions) -> Result<Self, OpenError> {
        Self::found(name, sources::image_in(name, source, options.offset)?, options)
    }

    fn found(
        path: &Path,
        (source, offset, format): (Arc<dyn ImageSource>, u64, Format),
        options: &OpenOptions,
    ) -> Result<Self, OpenError> {
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
            devices => {
                let superblock_checksum = options.superblock_checksum;
                Ok(Self { path: path.to_owned(), source, offset, format, superblock_checksum, devices })
            }
        }
    }
}

/// Reads the device table on this thread, and opens the devices.
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
