//! The index of one compressed file with arbitrary bytes: mapping the file returns errors or consistent extents.
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
    let erofs = Erofs::open(Arc::clone(&reader) as Arc<dyn BlockReader>).expect("everything but the index is valid");
    let Ok(attr) = erofs.attr(IndexedImage::FILE) else { return };
    let _ = map_file(&erofs, IndexedImage::FILE, attr.size);
});
