//! Finds the parts of an image that a launch reads, so that mounts from a registry can fetch them first.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    fs, io,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use floe::{ByteRange, FileType, FormatImage, Image, ImageFiles, ImageSource, Nid, OpenError, OpenOptions};
use floe_mkfs::{NameUsage, Profile, ProfileName, ProfileStep};
use floe_source::FileSource;

use crate::fail::Fail;

/// The number of bytes that the kernel reads before and behind a read of a program: half of its readahead window before
/// a page fault, and a whole window behind it.
const READ_BEFORE: u64 = 64 << 10;
const READ_BEHIND: u64 = 128 << 10;

/// The unit in which the kernel's EROFS stores files.
const BLOCK_BYTES: u64 = 4096;

/// The number of inode numbers whose small files have places side by side behind the kernel's EROFS, and the size from which
/// on a file is not one of them (floe-front).
const GROUP_NUMBERS: u64 = 64;
const LARGE_FILE_BYTES_MIN: u64 = 128 << 10;

/// A read of a launch: the path of the file, and the range in it.
type Read = (Vec<u8>, ByteRange);

/// The parts of an image that a launch reads, in the order in which they are needed: the metadata for opening the image
/// and for finding the files, the contents that the launch in `profile` or in the image reads, and the bytes that the
/// kernel reads around them. Empty if there is no profile.
///
/// # Errors
/// The image cannot be opened, or the profile is invalid.
pub(super) fn launch_ranges(path: &Path, profile: Option<&Path>) -> Result<Vec<Vec<ByteRange>>, Fail> {
    let options = OpenOptions::default();
    let launch = match profile {
        Some(profile) => Launched::of(&read_profile(profile)?),
        None => match Image::open(path, &options) {
            Ok(image) => Launched::in_image(&image),
            // The image is pushed without its devices. Readers add them.
            Err(OpenError::MissingDevice { .. }) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        },
    };
    if launch.reads.is_empty() {
        return Ok(Vec::new());
    }
    let file = FileSource::open(path).map_err(|error| Fail::failed(format!("{}: {error}", path.display())))?;
    let recording = Arc::new(RecordingSource { file, read: Mutex::default() });
    let source: Arc<dyn ImageSource> = Arc::clone(&recording) as Arc<dyn ImageSource>;
    let image = Image::of(ImageFiles::of_source(path, &source, &options)?, &options.engine)?;
    launch.find(&image);
    // Paths of the profile that the image does not contain are skipped, as in mkfs.
    let resolved = |(path, range): &Read| Some((image.resolve(path).ok()?, *range));
    let found: Vec<_> = launch.reads.iter().filter_map(resolved).collect();
    let stored = image.stored_runs(&found, 0);
    let read_around = image.stored_runs(&launch.read_around(&image), 0);
    let metadata = recording.read.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Ok(vec![metadata, stored, read_around])
}

/// The reads and names of a launch.
#[derive(Default)]
struct Launched {
    reads: Vec<Read>,
    names: Vec<ProfileName>,
    /// The paths of both that are found, in the order of the launch.
    touched: Vec<Vec<u8>>,
}

impl Launched {
    fn of(profile: &Profile) -> Self {
        let reads = profile.ranges().iter().map(|range| (range.path.clone(), range.range)).collect();
        let touched = profile.steps().filter_map(|step| match step {
            ProfileStep::Range(range) => Some(range.path.clone()),
            ProfileStep::Name(name) => (name.usage == NameUsage::Found).then(|| name.path.clone()),
        });
        Self { reads, names: profile.names().to_vec(), touched: touched.collect() }
    }

    /// The profile in the image, or its launch list with paths: a launch finds the files by their paths.
    fn in_image(image: &Image) -> Self {
        let FormatImage::Erofs(erofs) = image.format_image() else { return Self::default() };
        let profile = erofs.launch_profile().ok().flatten().and_then(|text| Profile::read(text.as_slice()).ok());
        if let Some(profile) = profile {
            return Self::of(&profile);
        }
        let listed = erofs.launch_list().unwrap_or_default();
        if listed.is_empty() {
            return Self::default();
        }
        let files = image.walk().flatten().filter(|entry| entry.attr.file_type == FileType::Regular);
        let paths: HashMap<Nid, Vec<u8>> = files.map(|entry| (entry.attr.nid, entry.path)).collect();
        let reads = listed.into_iter().filter_map(|(nid, range)| Some((paths.get(&nid)?.clone(), range)));
        let reads: Vec<Read> = reads.collect();
        Self { touched: reads.iter().map(|(path, _)| path.clone()).collect(), reads, names: Vec::new() }
    }

    /// Finds the names as a mount does, which reads the metadata that the launch needs. The inodes of a directory are read
    /// together, because mounts read them ahead.
    fn find(&self, image: &Image) {
        if let FormatImage::Erofs(erofs) = image.format_image() {
            let _ = (erofs.launch_list(), erofs.launch_profile());
        }
        let mut directories = BTreeSet::new();
        for name in &self.names {
            let is_list = name.usage == NameUsage::List;
            let _ = image.resolve_link(&name.path).map(|nid| image.attr(nid));
            directories.insert(if is_list { &*name.path } else { parent_of(&name.path) });
        }
        directories.extend(self.reads.iter().map(|(path, _)| parent_of(path)));
        for directory in directories {
            let Ok(nid) = image.resolve(directory) else { continue };
            image.read_dir(nid).flatten().for_each(|entry| drop(image.attr(entry.nid)));
        }
    }
}

fn parent_of(path: &[u8]) -> &[u8] {
    path.iter().rposition(|byte| *byte == b'/').map_or(path, |slash| &path[..slash])
}

impl Launched {
    /// The ranges that the kernel reads around the reads of the launch. A program waits for the whole request. Behind
    /// the kernel's EROFS, the small files of a directory are adjacent, so the kernel reads into the next ones.
    fn read_around(&self, image: &Image) -> Vec<(Nid, ByteRange)> {
        let neighbours = Neighbours::of(image, &self.touched);
        let mut around = Vec::new();
        for (path, range) in &self.reads {
            let Ok(nid) = image.resolve(path) else { continue };
            around.push((nid, around_range(*range)));
            let Some((before, size, behind)) = neighbours.of_file(nid) else { continue };
            let mut rest = READ_BEFORE.saturating_sub(range.offset());
            for (before, size) in before.iter().rev() {
                if rest == 0 {
                    break;
                }
                let skipped = size.next_multiple_of(BLOCK_BYTES).saturating_sub(rest);
                around.push((*before, ByteRange::between(skipped.min(*size), *size)));
                rest = rest.saturating_sub(size.next_multiple_of(BLOCK_BYTES));
            }
            let end = range.end().saturating_add(READ_BEHIND);
            let mut rest = end.saturating_sub(size.next_multiple_of(BLOCK_BYTES));
            for (behind, size) in behind {
                if rest == 0 {
                    break;
                }
                around.push((*behind, ByteRange::new(0, rest.min(*size))));
                rest = rest.saturating_sub(size.next_multiple_of(BLOCK_BYTES));
            }
        }
        around
    }
}

/// A file and its size.
type FileSize = (Nid, u64);

/// The small files that have places side by side behind the kernel's EROFS, in the order of these places: all files whose
/// inode numbers share a group get them when the kernel reads the first inode of the group.
struct Neighbours {
    /// The files and their sizes.
    files: Vec<FileSize>,
    places: HashMap<Nid, usize>,
}

impl Neighbours {
    /// The places of files after a launch that touches these paths in this order.
    fn of(image: &Image, touched: &[Vec<u8>]) -> Self {
        let file_system = image.file_system();
        let mut found = Self { files: Vec::new(), places: HashMap::new() };
        let mut groups = HashSet::new();
        for path in touched {
            let Ok(Ok(attr)) = image.resolve_link(path).map(|nid| image.attr(nid)) else { continue };
            let first = attr.inode_number - attr.inode_number % GROUP_NUMBERS;
            if attr.file_type != FileType::Regular || !groups.insert(first) {
                continue;
            }
            let possible = file_system.possible_numbers(first).unwrap_or(0);
            for number in (0..GROUP_NUMBERS).filter(|bit| possible >> bit & 1 != 0).map(|bit| first + bit) {
                let Ok(Some(nid)) = file_system.find_number(number) else { continue };
                let Ok(attr) = image.attr(nid) else { continue };
                if attr.file_type == FileType::Regular && (1..LARGE_FILE_BYTES_MIN).contains(&attr.size) {
                    found.places.insert(nid, found.files.len());
                    found.files.push((nid, attr.size));
                }
            }
        }
        found
    }

    /// The files before a file, its size, and the files behind it; `None` if it has no such place.
    fn of_file(&self, nid: Nid) -> Option<(&[FileSize], u64, &[FileSize])> {
        let place = *self.places.get(&nid)?;
        let (before, rest) = self.files.split_at_checked(place)?;
        let ((_, size), behind) = rest.split_first()?;
        Some((before, *size, behind))
    }
}

/// A range of a file, extended by the bytes that the kernel reads before and behind it.
fn around_range(range: ByteRange) -> ByteRange {
    ByteRange::between(range.offset().saturating_sub(READ_BEFORE), range.end().saturating_add(READ_BEHIND))
}

/// A file that records the ranges that are read.
struct RecordingSource {
    file: FileSource,
    read: Mutex<Vec<ByteRange>>,
}

impl ImageSource for RecordingSource {
    fn len(&self) -> u64 {
        self.file.len()
    }

    fn read_at(&self, offset: u64, output: &mut [u8]) -> io::Result<()> {
        let range = ByteRange::new(offset, output.len() as u64);
        self.read.lock().unwrap_or_else(PoisonError::into_inner).push(range);
        self.file.read_at(offset, output)
    }
}

fn read_profile(profile: &Path) -> Result<Profile, Fail> {
    let failed = |error: &dyn std::fmt::Display| Fail::failed(format!("{}: {error}", profile.display()));
    let file = fs::File::open(profile).map_err(|error| failed(&error))?;
    Profile::read(file).map_err(|error| failed(&error))
}
