//! Rendering is repeatable: the bytes are the same in any order and on any thread.

use std::{sync::Arc, thread};

use floe_front::{Origin, VirtualImage};
use floe_image::{ByteRange, FileSystem, FileType, Nid};
use floe_testkit::{
    Random,
    corpus::{Corpus, ImageRecord},
    manifest::{Comparison, Manifest, differences},
    walk,
};
use proptest::prelude::*;

use crate::support::{BLOCK, Front, VirtualFile};

/// Images with many features: attributes, holes, blocks of other sizes, both formats.
const IMAGES: [&str; 6] =
    ["erofs-plain-full", "erofs-plain-b512", "erofs-plain-dot-omitted", "erofs-lz4", "sqfs-zstd", "sqfs-no-exports"];

/// The available images of [`IMAGES`], or the fixtures.
fn images(corpus: &Corpus) -> Vec<ImageRecord> {
    let all = corpus.images();
    let named = |name: &str| all.iter().find(|image| image.name.starts_with(name) && !image.huge).cloned();
    let found: Vec<ImageRecord> = IMAGES.iter().filter_map(|name| named(name)).collect();
    if found.is_empty() { all } else { found }
}

fn walked(front: &Front) -> (Manifest, Arc<VirtualFile>) {
    let source = front.source();
    let sources = vec![Arc::clone(&source) as _, front.large_source() as _];
    let (reader, erofs) = crate::support::open_erofs(sources).expect("it is opened");
    let read = |nid, range: ByteRange| reader.read_file(&erofs, nid, range);
    (walk::image(&erofs, &read).expect("it is walked"), source)
}

fn shuffle<T>(items: &mut [T], random: &mut Random) {
    for end in (1..items.len()).rev() {
        items.swap(end, random.below(end as u64 + 1) as usize);
    }
}

fn block(front: &Front, number: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    let read = front.reader.read(VirtualImage::NID, number * BLOCK as u64, &mut bytes);
    assert_eq!(read.expect("it was read before"), BLOCK);
    bytes
}

#[test]
fn blocks_stay_as_they_were_on_many_threads() {
    let corpus = Corpus::locate_or_fixtures();
    for image in images(&corpus) {
        let front = Front::of_record(&corpus, &image).expect("it is opened");
        let (_, source) = walked(&front);
        let blocks = source.kept_blocks();
        assert!(blocks.len() > 2, "{}: a walk reads blocks", image.name);
        thread::scope(|scope| {
            for seed in 0..4 {
                let (front, mut blocks, name) = (&front, blocks.clone(), &image.name);
                scope.spawn(move || {
                    shuffle(&mut blocks, &mut Random::new(seed));
                    for (number, bytes) in blocks {
                        assert!(block(front, number) == *bytes, "{name}: block {number} has changed");
                    }
                });
            }
        });
    }
}

#[test]
fn every_byte_of_a_file_maps_to_its_address_and_back() {
    let corpus = Corpus::locate_or_fixtures();
    let mut large_files = 0;
    for image in images(&corpus) {
        let front = Front::of_record(&corpus, &image).expect("it is opened");
        walked(&front);
        let (mut found, mut found_large) = (0, 0);
        let mut random = Random::new(7);
        for (nid, size) in files(front.original.as_ref()) {
            for offset in [0, size - 1, random.below(size)] {
                let origin = Origin { nid, offset };
                let Some(place) = front.image.place(origin).expect("the metadata are read") else { continue };
                assert_eq!(front.image.origin(place).expect("they are read"), Some(origin), "{}", image.name);
                let (mut expected, mut bytes) = ([0], [0]);
                front.original_reader.read(nid, offset, &mut expected).expect("it is read");
                let large_start = front.image.address(VirtualImage::LARGE_NID, 0);
                let (file, within) = match place.checked_sub(large_start) {
                    Some(within) => (VirtualImage::LARGE_NID, within),
                    None => (VirtualImage::NID, place),
                };
                front.reader.read(file, within, &mut bytes).expect("it is read");
                assert_eq!(bytes, expected, "{} {origin:?}", image.name);
                found += 1;
                found_large += usize::from(file == VirtualImage::LARGE_NID);
            }
        }
        assert!(found > found_large, "{}: files have places", image.name);
        large_files += found_large;
        for number in [0, 1, 128, 255] {
            assert_eq!(front.image.origin(number * BLOCK as u64).expect("nothing is read"), None);
        }
    }
    assert!(large_files > 0, "an image has large files");
}

/// The regular files that are not empty.
fn files(file_system: &dyn FileSystem) -> Vec<(Nid, u64)> {
    let (mut files, mut pending) = (Vec::new(), vec![file_system.root()]);
    while let Some(nid) = pending.pop() {
        let attr = file_system.attr(nid).expect("it is read");
        match attr.file_type {
            FileType::Regular if attr.size > 0 => files.push((nid, attr.size)),
            FileType::Directory => {
                let listed = file_system.read_dir(nid, Default::default(), &mut |dirent| {
                    if dirent.name != b"." && dirent.name != b".." {
                        pending.push(dirent.nid);
                    }
                    std::ops::ControlFlow::Continue(())
                });
                listed.expect("it is listed");
            }
            _ => {}
        }
    }
    files
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    /// Addresses are assigned in the order of the first reads, which must not affect the bytes read.
    #[test]
    fn the_order_of_first_reads_does_not_matter(seed: u64, image in 0..IMAGES.len()) {
        let corpus = Corpus::locate_or_fixtures();
        let images = images(&corpus);
        let image = &images[image % images.len()];
        let (expected, source) = walked(&Front::of_record(&corpus, image).expect("it is opened"));
        let front = Front::of_record(&corpus, image).expect("it is opened");
        let mut metadata: Vec<u64> = source.kept_blocks().iter().map(|(number, _)| *number).collect();
        metadata.retain(|number| *number >= 0x7fff_f000);
        let mut random = Random::new(seed);
        shuffle(&mut metadata, &mut random);
        let kept = random.below(metadata.len() as u64 + 1) as usize;
        for number in &metadata[..kept] {
            block(&front, *number);
        }
        let (found, _) = walked(&front);
        prop_assert_eq!(differences(&expected, &found, &Comparison::default()), Vec::<String>::new());
    }
}
