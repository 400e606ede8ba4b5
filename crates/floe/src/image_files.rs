//! The open files of an image, and the search for an image in them.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use floe_erofs::SuperblockChecksum;
use floe_image::{ImageSource, SourceIdentity};
use floe_source::{ImageFormat, locate};

use crate::{
    Format, Likeness, NamedFiles, Offset, OpenError, OpenOptions,
    devices::{AddedDevices, add_devices},
    likeness::HEAD_BYTES,
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
            Format::Erofs => add_devices(source.as_ref(), named, options),
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

/// Finds the image in a source; errors call it `name`. Returns the image's bytes, its offset in the source, and its format.
fn image_in(
    name: &Path,
    whole: &Arc<dyn ImageSource>,
    offset: Offset,
) -> Result<(Arc<dyn ImageSource>, u64, ImageFormat), OpenError> {
    let at_file = |error| OpenError::File { path: name.to_owned(), error };
    let mut at = match offset {
        Offset::None | Offset::Auto => 0,
        Offset::At(at) => at,
    };
    let mut source = part(whole, at).map_err(at_file)?;
    let mut format = ImageFormat::of(source.as_ref()).map_err(at_file)?;
    if format.is_none() && offset == Offset::Auto {
        let Some(location) = locate(source.as_ref()).map_err(at_file)? else {
            return Err(not_an_image(name, None, source.as_ref(), whole));
        };
        at = location.offset;
        format = Some(location.format);
        source = part(whole, at).map_err(at_file)?;
    }
    match format {
        Some(format) => Ok((source, at, format)),
        None => Err(not_an_image(name, Some(at), source.as_ref(), whole)),
    }
}

/// The bytes of a source from `offset` on.
fn part(whole: &Arc<dyn ImageSource>, offset: u64) -> io::Result<Arc<dyn ImageSource>> {
    if offset == 0 {
        return Ok(Arc::clone(whole));
    }
    let past_end = || {
        io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("the file is too short: it ends after {} bytes", whole.len()),
        )
    };
    Ok(Arc::new(PartSource::new(Arc::clone(whole), offset).ok_or_else(past_end)?))
}

fn not_an_image(path: &Path, offset: Option<u64>, source: &dyn ImageSource, whole: &Arc<dyn ImageSource>) -> OpenError {
    let mut head = vec![0; source.len().min(HEAD_BYTES as u64) as usize];
    let likeness = source.read_at(0, &mut head).ok().and_then(|()| Likeness::of(&head));
    // Without `Offset::Auto`, the search in other places only serves the advice in the error.
    let found_at = offset.and_then(|_| locate(whole.as_ref()).ok()?.map(|location| location.offset));
    OpenError::NotAnImage { path: path.to_owned(), offset, likeness, found_at }
}

/// The bytes of another source from an offset on.
struct PartSource {
    whole: Arc<dyn ImageSource>,
    offset: u64,
    len: u64,
}

impl PartSource {
    /// The bytes from `offset` on; `None` if the source is shorter.
    fn new(whole: Arc<dyn ImageSource>, offset: u64) -> Option<Self> {
        let len = whole.len().checked_sub(offset)?;
        Some(Self { whole, offset, len })
    }

    /// Translates an offset to the whole source.
    fn place(&self, offset: u64, len: usize) -> io::Result<u64> {
        match u64::try_from(len).ok().and_then(|len| offset.checked_add(len)) {
            Some(end) if end <= self.len => Ok(self.offset + offset),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Passes a hint to the whole source, limited to the bytes of this one.
    fn hint(&self, offset: u64, len: u64, tell: impl Fn(u64, u64)) {
        let len = len.min(self.len.saturating_sub(offset));
        if len > 0 {
            tell(self.offset + offset, len);
        }
    }
}

impl ImageSource for PartSource {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, output: &mut [u8]) -> io::Result<()> {
        self.whole.read_at(self.place(offset, output.len())?, output)
    }

    fn try_read_at(&self, offset: u64, output: &mut [u8]) -> io::Result<bool> {
        self.whole.try_read_at(self.place(offset, output.len())?, output)
    }

    fn identity(&self) -> Option<SourceIdentity> {
        let whole = self.whole.identity()?;
        Some(SourceIdentity { offset: whole.offset + self.offset, len: self.len, ..whole })
    }

    fn reads_around(&self) -> bool {
        self.whole.reads_around()
    }

    fn will_need(&self, offset: u64, len: u64) {
        self.hint(offset, len, |offset, len| self.whole.will_need(offset, len));
    }

    fn dont_need(&self, offset: u64, len: u64) {
        self.hint(offset, len, |offset, len| self.whole.dont_need(offset, len));
    }
}

#[cfg(test)]
mod tests {
    use floe_testkit::MemorySource;

    use super::*;

    #[test]
    fn a_part_begins_and_ends_with_its_bytes() {
        let whole: Arc<dyn ImageSource> = Arc::new(MemorySource::new((0..100).collect::<Vec<u8>>()));
        let part = PartSource::new(Arc::clone(&whole), 90).expect("within");
        let mut bytes = [0; 10];
        part.read_at(0, &mut bytes).expect("read");
        assert_eq!((part.len(), bytes), (10, [90, 91, 92, 93, 94, 95, 96, 97, 98, 99]));
        for (offset, len) in [(1, 10), (10, 1), (u64::MAX, 1)] {
            assert!(part.read_at(offset, &mut bytes[..len]).is_err(), "{len} bytes from {offset}");
        }
        part.will_need(u64::MAX, u64::MAX);
        assert!(PartSource::new(whole, 101).is_none());
    }
}
