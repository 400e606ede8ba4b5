//! Every reference image reads as its manifest says.

use std::{env, sync::Arc};

use floe_erofs::Erofs;
use floe_image::{BlockReader, ImageSource};
use floe_testkit::{
    DirectReader, MemorySource, check_rows,
    corpus::{Corpus, Format, ImageRecord},
    manifest::{Comparison, differences},
    walk,
};

/// A reader of an image and its devices.
fn reader_of(corpus: &Corpus, image: &ImageRecord) -> Arc<DirectReader> {
    let mut bytes = corpus.bytes(&image.image);
    bytes.drain(..usize::try_from(image.offset).expect("the offset is within the file"));
    let devices = image.devices.iter().map(|device| corpus.bytes(device));
    let sources = std::iter::once(bytes).chain(devices);
    Arc::new(DirectReader::new(
        sources.map(|bytes| -> Arc<dyn ImageSource> { Arc::new(MemorySource::new(bytes)) }).collect(),
    ))
}

#[test]
fn every_image_reads_as_its_manifest_says() {
    let corpus = Corpus::locate_or_fixtures();
    let only = env::var("FLOE_IMAGE").ok();
    let is_wanted = |image: &ImageRecord| {
        image.format == Format::Erofs && !image.huge && only.as_ref().is_none_or(|only| image.name.contains(only))
    };
    let images: Vec<ImageRecord> = corpus.images().into_iter().filter(is_wanted).collect();
    check_rows(
        &images,
        |image| image.name.clone(),
        |image| {
            let reader = reader_of(&corpus, image);
            let file_system = match Erofs::open(Arc::clone(&reader) as Arc<dyn BlockReader>) {
                Ok(file_system) => file_system,
                Err(error) => return vec![error.to_string()],
            };
            let read = |nid, range| reader.read_file(&file_system, nid, range);
            match walk::image(&file_system, &read) {
                Ok(found) => differences(&corpus.manifest(image), &found, &Comparison::default()),
                Err(error) => vec![error.to_string()],
            }
        },
    );
}
