//! Finds the parts of an image that a launch reads, so that mounts from a registry can fetch them first.

use std::{
    collections::HashMap,
    fs, io,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use floe::{ByteRange, FileType, FormatImage, Image, ImageFiles, ImageSource, Nid, OpenOptions};
use floe_mkfs::Profile;
use floe_source::FileSource;

use crate::fail::Fail;

/// A read of a launch: the path of the file, and the range in it.
type Read = (Vec<u8>, ByteRange);

/// The parts of an image that a launch reads: the metadata for opening the image and finding the files, and the contents of the
/// files in `profile`, or in the launch list of the image. Empty if there is neither.
///
/// # Errors
/// The image cannot be opened, or the profile is invalid.
pub(super) fn launch_ranges(path: &Path, profile: Option<&Path>) -> Result<Vec<Vec<ByteRange>>, Fail> {
    let options = OpenOptions::default();
    let failed = |error: &dyn std::fmt::Display| Fail::failed(format!("{}: {error}", path.display()));
    let reads = match profile {
        Some(profile) => reads_of(profile)?,
        None => reads_listed(&Image::open(path, &options)?),
    };
    if reads.is_empty() {
        return Ok(Vec::new());
    }
    let file = FileSource::open(path).map_err(|error| failed(&error))?;
    let noting = Arc::new(NotingSource { file, read: Mutex::default() });
    let source: Arc<dyn ImageSource> = Arc::clone(&noting) as Arc<dyn ImageSource>;
    let image = Image::of(ImageFiles::of_source(path, &source, &options)?, &options.engine)?;
    // Paths of the profile that the image does not contain are skipped, as in mkfs.
    let found = reads.iter().filter_map(|(path, range)| Some((image.resolve(path).ok()?, *range)));
    let stored = image.stored_runs(&found.collect::<Vec<_>>());
    let metadata = noting.read.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Ok(vec![metadata, stored])
}

/// A file that records the ranges that are read.
struct NotingSource {
    file: FileSource,
    read: Mutex<Vec<ByteRange>>,
}

impl ImageSource for NotingSource {
    fn len(&self) -> u64 {
        self.file.len()
    }

    fn read_at(&self, offset: u64, output: &mut [u8]) -> io::Result<()> {
        let range = ByteRange::new(offset, output.len() as u64);
        self.read.lock().unwrap_or_else(PoisonError::into_inner).push(range);
        self.file.read_at(offset, output)
    }
}

fn reads_of(profile: &Path) -> Result<Vec<Read>, Fail> {
    let failed = |error: &dyn std::fmt::Display| Fail::failed(format!("{}: {error}", profile.display()));
    let file = fs::File::open(profile).map_err(|error| failed(&error))?;
    let profile = Profile::read(file).map_err(|error| failed(&error))?;
    Ok(profile.ranges().iter().map(|range| (range.path.clone(), range.range)).collect())
}

/// The launch list of the image with paths: a launch finds the files by their paths.
fn reads_listed(image: &Image) -> Vec<Read> {
    let FormatImage::Erofs(erofs) = image.format_image() else { return Vec::new() };
    let listed = erofs.launch_list().unwrap_or_default();
    if listed.is_empty() {
        return Vec::new();
    }
    let files = image.walk().flatten().filter(|entry| entry.attr.file_type == FileType::Regular);
    let paths: HashMap<Nid, Vec<u8>> = files.map(|entry| (entry.attr.nid, entry.path)).collect();
    listed.into_iter().filter_map(|(nid, range)| Some((paths.get(&nid)?.clone(), range))).collect()
}
