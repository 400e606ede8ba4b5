//! Many images in one engine.

use std::{sync::Arc, thread};

use floe::{Engine, EngineOptions, Image, ImageFiles, Offset, OpenOptions, Reader, VolumeOptions};
use floe_image::{ImageSource, Nid};
use floe_testkit::{
    HeldSource, MemorySource, TruncatedSource,
    corpus::{Corpus, ImageRecord},
};

use crate::corpus::complaints;

/// The number of sound images.
const SOUND_COUNT: usize = 17;

fn open(engine: &Arc<Engine>, name: &str, source: Arc<dyn ImageSource>) -> Result<Image, floe::OpenError> {
    let options = OpenOptions { offset: Offset::Auto, ..OpenOptions::default() };
    Image::of_in(engine, ImageFiles::of_source(name.as_ref(), &source, &options)?, &options)
}

/// Some images without devices, in memory.
fn sound_images(corpus: &Corpus) -> Vec<(ImageRecord, Vec<u8>)> {
    let mut records = corpus.sample();
    records.retain(|record| !record.huge && record.devices.is_empty());
    records
        .into_iter()
        .cycle()
        .take(SOUND_COUNT)
        .map(|record| {
            let bytes = corpus.bytes(&record.image);
            (record, bytes)
        })
        .collect()
}

/// Asks for the beginning of every file of an image, and waits for nothing.
fn ask_for_everything(reader: &Reader, files: &[Nid]) {
    for nid in files {
        reader.read_then(*nid, 0, 128 << 10, |_| ());
    }
}

#[test]
fn images_beside_a_stuck_a_corrupt_and_a_truncated_one_are_read_completely() {
    let corpus = Corpus::locate_or_fixtures();
    let engine = Engine::new(&EngineOptions::default()).expect("an engine");
    let sound = sound_images(&corpus);
    let memory = |bytes: &[u8]| Arc::new(MemorySource::new(bytes)) as Arc<dyn ImageSource>;
    let opened: Vec<_> = sound
        .iter()
        .map(|(record, bytes)| {
            open(&engine, &record.name, memory(bytes)).unwrap_or_else(|error| panic!("{}: {error}", record.name))
        })
        .collect();

    let held = Arc::new(HeldSource::new(memory(&sound[0].1)));
    let stuck = open(&engine, "stuck", Arc::clone(&held) as _).expect("its source answers still");
    let files: Vec<_> = stuck.walk().filter_map(|entry| Some(entry.ok()?.attr.nid)).collect();
    held.hold();
    let corrupt: Vec<_> = corpus.corrupt_images().iter().map(|image| corpus.corrupt_bytes(image)).collect();
    thread::scope(|scope| {
        for _ in 0..50 {
            ask_for_everything(stuck.reader(), &files);
        }
        // An image that cannot be opened is none of the others' business.
        let corrupt = corrupt.iter().find_map(|bytes| open(&engine, "corrupt", memory(bytes)).ok());
        let bytes = &sound[1].1;
        let truncated = Arc::new(TruncatedSource::new(memory(bytes), bytes.len() as u64 * 3 / 4));
        let truncated = open(&engine, "truncated", truncated).ok();
        for image in corrupt.iter().chain(&truncated) {
            let files: Vec<_> = image.walk().take(10_000).filter_map(|entry| Some(entry.ok()?.attr.nid)).collect();
            ask_for_everything(image.reader(), &files);
        }
        let readers: Vec<_> = opened
            .iter()
            .zip(&sound)
            .map(|(image, (record, _))| scope.spawn(|| (record.name.clone(), complaints(image, &corpus, record))))
            .collect();
        for reader in readers {
            let (name, complaints) = reader.join().expect("no panic");
            assert!(complaints.is_empty(), "{name}: {complaints:?}");
        }
        assert!(held.is_held(), "the others did not wait for it");
        held.release();
    });
}

#[test]
fn a_file_that_is_opened_twice_is_decoded_once() {
    let corpus = Corpus::fixtures();
    let demo = corpus.root().join("demo.erofs");
    let engine = Engine::new(&EngineOptions::default()).expect("an engine");
    let options = OpenOptions {
        volume: VolumeOptions { read_around: false, ..VolumeOptions::default() },
        ..OpenOptions::default()
    };
    let images = [0, 1].map(|_| Image::open_in(&engine, &demo, &options).expect("the demo image"));
    let read = |image: &Image| {
        for entry in image.walk().flatten().filter(|entry| entry.attr.size > 5000) {
            // A part of a block goes through the block cache.
            let _ = image.read_at(entry.attr.nid, 10, &mut [0; 100]);
        }
        image.reader().volume().counters().decodes
    };
    let decodes = images.each_ref().map(read);
    // Tiny blocks are decoded again instead of cached.
    assert!(decodes[0] > 2 && decodes[1] < decodes[0] / 2, "{decodes:?}");
    // A file of equal content but another identity is another image.
    let bytes = std::fs::read(&demo).expect("the demo image");
    let folder = tempfile::tempdir().expect("a folder");
    let copy = folder.path().join("copy");
    std::fs::write(&copy, &bytes).expect("ours");
    assert_eq!(read(&Image::open_in(&engine, &copy, &options).expect("the demo image")), decodes[0]);
}
