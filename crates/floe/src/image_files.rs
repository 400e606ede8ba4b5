//! The open files of an image.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use floe_engine::{Engine, EngineOptions, WorkerMode};
use floe_erofs::SuperblockChecksum;
use floe_image::ImageSource;

use crate::{
    Format, NamedFiles, OpenError, OpenOptions,
    devices::{AddedDevices, add_devices},
    sources::image_in,
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
        Self::of_named(NamedFiles::open(path, options)?, options)
    }

    /// Like [`ImageFiles::open`], for an image that is already open. Errors call the image `name`.
    ///
    /// # Errors
    /// As [`ImageFiles::open`].
    pub fn of_source(name: &Path, source: &Arc<dyn ImageSource>, options: &OpenOptions) -> Result<Self, OpenError> {
        Self::of_named(NamedFiles::of_source(name, source, options), options)
    }

    /// Like [`ImageFiles::open`], for files that were opened with the same options. The only further files that this opens are
    /// those in [`OpenOptions::device_directory`].
    ///
    /// # Errors
    /// As [`ImageFiles::open`].
    pub fn of_named(named: NamedFiles, options: &OpenOptions) -> Result<Self, OpenError> {
        let (source, offset, format) = image_in(&named.name, &named.image, options.offset)?;
        let path = named.name.clone();
        let devices = match format {
            Format::Erofs => find_devices(&source, named, options),
            Format::Squashfs if named.devices.is_empty() => Ok(AddedDevices::default()),
            Format::Squashfs => {
                let given_count = named.devices.len();
                return Err(OpenError::TooManyDevices { path, given_count, expected_count: 0 });
            }
        };
        match devices {
            Err(error) if !matches!(error, OpenError::Image { .. }) => Err(error),
            devices => {
                let superblock_checksum = options.superblock_checksum;
                Ok(Self { path, source, offset, format, superblock_checksum, devices })
            }
        }
    }
}

/// Reads the device table on this thread, and adds the devices.
fn find_devices(
    source: &Arc<dyn ImageSource>,
    named: NamedFiles,
    options: &OpenOptions,
) -> Result<AddedDevices, OpenError> {
    let options_of_engine = EngineOptions {
        workers: WorkerMode::Inline,
        reserved_pages: 0,
        read_around: false,
        spill_file_bytes: 0,
        ..options.engine.clone()
    };
    let engine = Engine::new(vec![Arc::clone(source)], &options_of_engine)
        .map_err(|error| OpenError::Image { path: named.name.clone(), error })?;
    add_devices(&engine, named, options)
}
