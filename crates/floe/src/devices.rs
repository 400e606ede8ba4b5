//! Opens the files of an image by their names, and the extra devices of an EROFS image.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    sync::Arc,
};

use floe_erofs::{DeviceSlot, extra_devices};
use floe_image::{
    BlockReader, Bytes, DecodedBlock, DeviceId, Error, ImageSource, Place, Result as ImageResult, StoredBlock,
};
use floe_source::FileSource;
use rustix::fs::{Mode, OFlags, open};

use crate::{OpenError, OpenOptions};

/// The extra devices of an image.
#[derive(Default)]
pub(crate) struct AddedDevices {
    /// The entries of the image's device table.
    pub(crate) slots: Vec<DeviceSlot>,
    /// The added files, one for each slot; empty if the devices are expected in the image file itself.
    pub(crate) sources: Vec<Arc<dyn ImageSource>>,
    /// The paths of these files.
    pub(crate) paths: Vec<PathBuf>,
}

/// Opens the extra devices of an image: the named files for the first slots of the device table, and files from
/// the named directory for the others. With neither, opens none, since the devices may be part of the image file. Floe never opens
/// another file just because an image names it.
///
/// # Errors
/// There are more or fewer files than the image has devices, a file could not be opened, or the image breaks the format.
pub(crate) fn add_devices(
    source: &dyn ImageSource,
    named: NamedFiles,
    options: &OpenOptions,
) -> Result<AddedDevices, OpenError> {
    let NamedFiles { name: path, devices: given, device_directory, .. } = named;
    let slots = extra_devices(&StoredBytes(source), options.superblock_checksum)
        .map_err(|error| OpenError::Image { path: path.clone(), error })?;
    if given.len() > slots.len() {
        let (given_count, expected_count) = (given.len(), slots.len());
        return Err(OpenError::TooManyDevices { path, given_count, expected_count });
    }
    let mut added = AddedDevices { slots: Vec::new(), sources: Vec::new(), paths: Vec::new() };
    if given.is_empty() && device_directory.is_none() {
        return Ok(AddedDevices { slots, ..added });
    }
    let directory_path = options.device_directory.clone().unwrap_or_default();
    let directory = match device_directory {
        Some(Err(error)) if given.len() < slots.len() => {
            return Err(OpenError::Device { image: path, slot: slot_number(given.len()), path: directory_path, error });
        }
        opened => opened.and_then(Result::ok),
    };
    let mut given = options.devices.iter().cloned().zip(given);
    for (index, slot) in slots.iter().enumerate() {
        let (place, source) = match (given.next(), &directory) {
            (Some(given), _) => given,
            (None, Some(directory)) => {
                let place = directory_path.join(slot.tag.escape_ascii().to_string());
                (place, open_named(directory.as_fd(), &slot.tag))
            }
            (None, None) => return Err(missing(&path, &slots, index)),
        };
        let source = source.map_err(|error| {
            let (image, slot, path) = (path.clone(), slot_number(index), place.clone());
            OpenError::Device { image, slot, path, error }
        })?;
        added.sources.push(source);
        added.paths.push(place);
    }
    Ok(AddedDevices { slots, ..added })
}

/// The stored bytes of an image that has no engine yet.
struct StoredBytes<'source>(&'source dyn ImageSource);

impl BlockReader for StoredBytes<'_> {
    fn device_count(&self) -> u16 {
        1
    }

    fn device_len(&self, _: DeviceId) -> ImageResult<u64> {
        Ok(self.0.len())
    }

    fn stored(&self, device: DeviceId, offset: u64, len: usize) -> ImageResult<Bytes> {
        let end = u64::try_from(len).ok().and_then(|len| offset.checked_add(len));
        if len > <dyn BlockReader>::STORED_LEN_MAX || end.is_none_or(|end| end > self.0.len()) {
            let place = Place { nid: None, device, offset: Some(offset) };
            return Err(Error::corrupt("metadata past the end of the image", place));
        }
        let mut bytes = vec![0; len];
        self.0.read_at(offset, &mut bytes).map_err(|error| Error::io(device, offset, error))?;
        Ok(bytes.into())
    }

    fn decoded(&self, _: &StoredBlock) -> ImageResult<DecodedBlock> {
        Err(Error::unsupported("compressed device tables"))
    }
}

/// Opens the file in `directory` whose name is a device's tag. The tag comes from the image, so it must be a single
/// name, and a symbolic link is not followed. For a single name, `O_NOFOLLOW` ensures what `RESOLVE_BENEATH` and
/// `RESOLVE_NO_SYMLINKS` ensure for paths, and works on Linux 5.4.
fn open_named(directory: BorrowedFd<'_>, tag: &[u8]) -> io::Result<Arc<dyn ImageSource>> {
    let refused = |reason: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, reason.to_owned()));
    if tag.is_empty() {
        return refused("it has no name in the image: give its file with --device");
    }
    if tag == b"." || tag == b".." || tag.contains(&b'/') || tag.contains(&0) {
        return refused("its name leads out of the device directory: give its file with --device");
    }
    // Without NONBLOCK, opening a FIFO would wait for a writer.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(directory, tag, flags, Mode::empty()) {
        Err(rustix::io::Errno::LOOP) => {
            return refused("it is a symbolic link, which is not followed: give the file with --device");
        }
        result => File::from(result?),
    };
    Ok(Arc::new(FileSource::new(file, 0, None)?))
}

/// The number of a device; the image itself has number 0.
fn slot_number(index: usize) -> u16 {
    u16::try_from(index + 1).unwrap_or(u16::MAX)
}

/// Checks that an image of `image_len` bytes, without further files, is long enough to contain its devices.
///
/// # Errors
/// The image is shorter: its first device is missing.
pub(crate) fn check_flat(path: &Path, slots: &[DeviceSlot], image_len: u64, block_size: u32) -> Result<(), OpenError> {
    let holds = |slot: &DeviceSlot| {
        let end = slot.uniaddr.checked_add(slot.blocks).and_then(|end| end.checked_mul(u64::from(block_size)));
        slot.uniaddr != 0 && end.is_some_and(|end| end <= image_len)
    };
    match slots.iter().position(|slot| !holds(slot)) {
        Some(index) => Err(missing(path, slots, index)),
        None => Ok(()),
    }
}

fn missing(path: &Path, slots: &[DeviceSlot], index: usize) -> OpenError {
    let tag = slots.get(index).map(|slot| slot.tag.escape_ascii().to_string()).unwrap_or_default();
    OpenError::MissingDevice { path: path.to_owned(), index: slot_number(index), tag }
}

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

    /// The image and the devices of [`OpenOptions::devices`], which another process has opened for reading. Errors call the image
    /// `name`. No device directory is searched.
    ///
    /// # Errors
    /// The image is neither a regular file nor a block device.
    pub fn of_descriptors(
        name: &Path,
        image: OwnedFd,
        devices: impl IntoIterator<Item = OwnedFd>,
    ) -> Result<Self, OpenError> {
        let source = |file: OwnedFd| -> io::Result<Arc<dyn ImageSource>> {
            Ok(Arc::new(FileSource::new(File::from(file), 0, None)?))
        };
        let image = source(image).map_err(|error| OpenError::File { path: name.to_owned(), error })?;
        let devices = devices.into_iter().map(source).collect();
        Ok(Self { name: name.to_owned(), image, devices, device_directory: None })
    }

    /// Takes a source for the device with this index in [`OpenOptions::devices`], instead of a file with its name.
    pub fn set_device(&mut self, index: usize, source: Arc<dyn ImageSource>) {
        if let Some(device) = self.devices.get_mut(index) {
            *device = Ok(source);
        }
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
