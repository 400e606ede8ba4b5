//! The extra devices of an EROFS image.

use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use floe_engine::Engine;
use floe_erofs::{DeviceSlot, extra_devices};
use floe_image::ImageSource;

use crate::{OpenError, sources::open_file};

/// The extra devices of an image.
#[derive(Default)]
pub(crate) struct AddedDevices {
    /// What the image says of them.
    pub(crate) slots: Vec<DeviceSlot>,
    /// The files that were added, one for each slot; or none, where the devices are taken to stand in the image itself.
    pub(crate) sources: Vec<Arc<dyn ImageSource>>,
}

/// Adds the extra devices that the image at `path` names to its engine: those that were `given`, or those that stand
/// beside the image under their tags. Where none of either is there, none is added: they may stand in the image itself.
///
/// # Errors
/// There are more or fewer than the image names, one cannot be opened, or the image breaks the format.
pub(crate) fn add_devices(engine: &Engine, path: &Path, given: &[PathBuf]) -> Result<AddedDevices, OpenError> {
    let slots = extra_devices(engine).map_err(|error| OpenError::Image { path: path.to_owned(), error })?;
    if given.len() > slots.len() {
        let (given_count, expected_count) = (given.len(), slots.len());
        return Err(OpenError::TooManyDevices { path: path.to_owned(), given_count, expected_count });
    }
    let places: Vec<Option<PathBuf>> = match given {
        [] => slots.iter().map(|slot| beside(path, &slot.tag)).collect(),
        given => slots.iter().enumerate().map(|(index, _)| given.get(index).cloned()).collect(),
    };
    let mut sources = Vec::new();
    if places.iter().all(Option::is_none) {
        return Ok(AddedDevices { slots, sources });
    }
    for (index, place) in places.iter().enumerate() {
        let place = place.as_deref().ok_or_else(|| missing(path, &slots, index))?;
        let source = open_file(place, 0).map_err(|error| OpenError::File { path: place.to_owned(), error })?;
        engine.add_device(Arc::clone(&source));
        sources.push(source);
    }
    Ok(AddedDevices { slots, sources })
}

/// Whether an image of `image_len` bytes, without further files, is long enough to hold its devices itself.
///
/// # Errors
/// It is not: the first device is missing.
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
    OpenError::MissingDevice { path: path.to_owned(), index: u16::try_from(index + 1).unwrap_or(u16::MAX), tag }
}

/// The file beside the image that has a device's tag as its name. A tag is no path: it never leads elsewhere.
fn beside(image: &Path, tag: &[u8]) -> Option<PathBuf> {
    let is_name = !tag.is_empty() && tag != b"." && tag != b".." && !tag.contains(&b'/') && !tag.contains(&0);
    let place = is_name.then(|| image.with_file_name(OsStr::from_bytes(tag)))?;
    (place.is_file() && place != image).then_some(place)
}
