//! The bytes of an image that a launch needs.

use std::{collections::BTreeSet, fs, io, path::Path, sync::Arc};

use floe::{Image, ImageFiles, ImageSource, OpenOptions};
use floe_image::{ByteRange, ExtentData, StoredLen};
use floe_sync::Mutex;

use crate::task_error::{During, Outcome, TaskError};

/// The unit in which bytes are counted.
const BLOCK_BYTES: u64 = 4096;

/// A source that notes which blocks are read.
struct Noting {
    inner: Arc<dyn ImageSource>,
    blocks: Mutex<BTreeSet<u64>>,
}

impl Noting {
    fn note(&self, offset: u64, len: u64) {
        if len > 0 {
            let blocks = offset / BLOCK_BYTES..=(offset + len - 1) / BLOCK_BYTES;
            self.blocks.lock().extend(blocks);
        }
    }
}

impl ImageSource for Noting {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, output: &mut [u8]) -> io::Result<()> {
        self.note(offset, output.len() as u64);
        self.inner.read_at(offset, output)
    }
}

/// The bytes of the blocks with the data of the ranges in a profile, and of the metadata that maps them.
pub(in crate::bench) fn needed_bytes(image: &Path, profile: &Path) -> Outcome<u64> {
    Ok(needed_steps(image, profile)?.iter().sum())
}

/// The same by steps: the bytes for opening the image, and those that each file of the profile needs and no earlier one.
pub(super) fn needed_steps(image: &Path, profile: &Path) -> Outcome<Vec<u64>> {
    let inner: Arc<dyn ImageSource> =
        Arc::new(floe_testkit::MemorySource::new(fs::read(image).during(image.display())?));
    let noting = Arc::new(Noting { inner, blocks: Mutex::default() });
    let options = OpenOptions::default();
    let source: Arc<dyn ImageSource> = Arc::clone(&noting) as Arc<dyn ImageSource>;
    let files = ImageFiles::of_source(image, &source, &options).map_err(|error| TaskError::new(error.to_string()))?;
    let image = Image::of(files, &options).map_err(|error| TaskError::new(error.to_string()))?;
    let mut extents = Vec::new();
    let needed = || noting.blocks.lock().len() as u64 * BLOCK_BYTES;
    let mut steps = vec![needed()];
    let (mut before, mut path) = (needed(), String::new());
    for line in fs::read_to_string(profile).during(profile.display())?.lines().filter(|line| !line.starts_with('#')) {
        let mut fields = line.splitn(3, ' ');
        let mut number = || fields.next().and_then(|field| field.parse().ok()).unwrap_or(0);
        let range = ByteRange::new(number(), number());
        let name = fields.next().unwrap_or_default();
        if name != path {
            steps.push(needed() - before);
            (before, path) = (needed(), name.to_owned());
        }
        let Ok(nid) = image.resolve(name) else { continue };
        image.file_system().map(nid, range, &mut extents).map_err(|error| TaskError::new(error.to_string()))?;
        for extent in extents.drain(..) {
            match extent.data {
                ExtentData::Hole => {}
                ExtentData::Plain { offset, .. } => {
                    let part = extent.range.intersection(range);
                    noting.note(offset + (part.offset() - extent.range.offset()), part.len());
                }
                ExtentData::Encoded { block, .. } => match block.stored_len {
                    StoredLen::Known(len) => noting.note(block.offset, u64::from(len)),
                    StoredLen::Prefixed => noting.note(block.offset, BLOCK_BYTES),
                },
            }
        }
    }
    steps.push(needed() - before);
    steps.retain(|bytes| *bytes > 0);
    Ok(steps)
}
