//! The index of one compressed file: whatever it says, mapping the file ends in errors or in extents that make sense.
#![no_main]

use std::sync::Arc;

use floe_erofs::Erofs;
use floe_fuzz::{image::map_file, indexed::IndexedImage};
use floe_image::{BlockReader, FileSystem};
use floe_testkit::DirectReader;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some(image) = IndexedImage::new(bytes) else { return };
    let reader = Arc::new(DirectReader::of(image.bytes));
    let erofs = Erofs::open(Arc::clone(&reader) as Arc<dyn BlockReader>).expect("what surrounds the index is sound");
    let Ok(attr) = erofs.attr(IndexedImage::FILE) else { return };
    let _ = map_file(&erofs, IndexedImage::FILE, attr.size);
});
