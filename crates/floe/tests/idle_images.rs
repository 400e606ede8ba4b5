//! Idle images in one engine cost little memory and nothing else, and images that are closed leave nothing behind.

use std::{fs, io, path::Path, sync::Arc};

use floe::{Engine, EngineOptions, Image, ImageFiles, OpenOptions};
use floe_image::ImageSource;
use floe_source::FileSource;

/// The memory that an idle image may take: its format's tables, its part of the caches, the state of its prefetch.
const IDLE_BYTES_MAX: u64 = 300 << 10;

const IMAGE_COUNT: u64 = 1000;

fn resident_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("procfs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

fn entry_count(directory: &str) -> usize {
    fs::read_dir(directory).expect("procfs").count()
}

/// The bytes of a file, of which no engine knows that others have the same.
struct Unidentified(Arc<FileSource>);

impl ImageSource for Unidentified {
    fn len(&self) -> u64 {
        self.0.len()
    }

    fn read_at(&self, offset: u64, output: &mut [u8]) -> io::Result<()> {
        self.0.read_at(offset, output)
    }
}

/// Opens the image in a file as one of its own.
fn open(engine: &Arc<Engine>, file: &Arc<FileSource>) -> Image {
    let source: Arc<dyn ImageSource> = Arc::new(Unidentified(Arc::clone(file)));
    let options = OpenOptions::default();
    let files = ImageFiles::of_source(Path::new("demo"), &source, &options).expect("the demo image");
    Image::of_in(engine, files, &options).expect("the demo image")
}

/// Reads a part of a file.
fn read(image: &Image) {
    let nid = image.resolve("/guide/reading.txt").expect("it is there");
    assert_eq!(image.read_at(nid, 10, &mut [0; 100]).ok(), Some(100));
}

// A single test, so that no other test of the process opens files or starts threads.
#[test]
fn idle_images_cost_little_and_closed_ones_nothing() {
    let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/demo.erofs");
    let demo = Arc::new(FileSource::open(demo).expect("the demo image"));
    let engine = Engine::new(&EngineOptions::default()).expect("an engine");
    // The caches are full, and the allocator has the memory that one image needs at a time.
    let churn = |count: u64| (0..count).for_each(|_| read(&open(&engine, &demo)));
    churn(100);
    let (threads, files) = (entry_count("/proc/self/task"), entry_count("/proc/self/fd"));
    let before = resident_bytes();
    churn(IMAGE_COUNT);
    let grown = resident_bytes().saturating_sub(before);
    eprintln!("{IMAGE_COUNT} images after each other: {grown} bytes");
    assert!(grown < IMAGE_COUNT * 1024, "{grown} bytes are left behind");
    let counters = engine.counters();
    assert_eq!((counters.pages.cache_pages, counters.pages.used_pages), (0, 0));
    assert_eq!((counters.stored_metadata.weight, counters.decoded_metadata.weight), (0, 0));
    assert_eq!((entry_count("/proc/self/task"), entry_count("/proc/self/fd")), (threads, files));

    let before = resident_bytes();
    let images: Vec<_> = (0..IMAGE_COUNT).map(|_| open(&engine, &demo)).collect();
    let each = || resident_bytes().saturating_sub(before) / IMAGE_COUNT;
    let unread = each();
    images.iter().for_each(read);
    eprintln!("{IMAGE_COUNT} idle images: {unread} bytes each, {} bytes each after a read", each());
    assert!(each() <= IDLE_BYTES_MAX, "{} bytes each", each());
    assert_eq!((entry_count("/proc/self/task"), entry_count("/proc/self/fd")), (threads, files));
    drop(images);
    assert_eq!(engine.counters().pages.cache_pages, 0);
}
