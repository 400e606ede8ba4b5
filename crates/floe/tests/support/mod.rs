//! What the tests share.
#![allow(dead_code, unused_imports, reason = "each test uses its part")]

pub(crate) mod program;
mod served;

use floe::{EngineOptions, Image, Offset, OpenOptions};
use floe_testkit::corpus::{Corpus, CorruptImage, Format, ImageRecord, Materialised};
#[allow(unused_imports, reason = "not every test mounts")]
pub(crate) use served::Served;

/// The formats that can be opened.
const FORMATS: &[Format] = &[Format::Erofs];

/// The images that can be opened; those of `FLOE_IMAGE` only if that is set.
pub(crate) fn images(corpus: &Corpus) -> Vec<ImageRecord> {
    let only = std::env::var("FLOE_IMAGE").unwrap_or_default();
    let images = corpus.images().into_iter();
    images.filter(|image| FORMATS.contains(&image.format) && image.name.contains(&only)).collect()
}

/// The corrupted images of the formats that can be opened; those of `FLOE_IMAGE` only if that is set.
pub(crate) fn corrupt_images(corpus: &Corpus) -> Vec<CorruptImage> {
    let only = std::env::var("FLOE_IMAGE").unwrap_or_default();
    let images = corpus.corrupt_images().into_iter();
    images.filter(|image| FORMATS.contains(&image.format()) && image.name.contains(&only)).collect()
}

/// Opens an image by the library.
pub(crate) fn open(image: &Materialised) -> Image {
    let offset = if image.offset == 0 { Offset::None } else { Offset::At(image.offset) };
    let options = OpenOptions { offset, devices: image.devices.clone(), engine: EngineOptions::default() };
    Image::open(&image.path, &options).unwrap_or_else(|error| panic!("{error}"))
}
