//! Reads the reference images with 24 combinations of switches, on the path of a mount's reads, and compares every
//! byte.

use std::{
    fs,
    sync::{Arc, atomic::AtomicBool, mpsc},
};

use floe::{
    ByteRange, Choice, EngineOptions, Error, ExtractOptions, FileSystem, Format, Image, Nid, Offset, OpenOptions,
    Parts, ReadaheadAlloc, SyncDecompress, VolumeOptions, WalkEntry, WorkerMode, extract,
};
use floe_engine::{Blocking, Reader};
use floe_erofs::Erofs;
use floe_image::ImageSource;
use floe_squashfs::Squashfs;
use floe_testkit::{
    HalfCachedSource, MemorySource, check_rows,
    corpus::{Corpus, ImageRecord},
    manifest::{Comparison, differences},
    walk, workspace_root,
};

/// The maximum length of a request of the kernel, in bytes.
const REQUEST_BYTES: u64 = 128 << 10;

/// The short test reads each image with this many of the combinations, in turn.
const SAMPLE_COUNT: usize = 2;

/// All combinations of options that change the path of a read.
fn combinations() -> Vec<(EngineOptions, VolumeOptions)> {
    let mut all = Vec::new();
    for workers in [WorkerMode::PerCpu, WorkerMode::Shared, WorkerMode::Inline] {
        for sync_decompress in [SyncDecompress::Auto, SyncDecompress::Never] {
            for cache_bytes in [0, 4 << 20] {
                for (reserved_pages, readahead_alloc) in [(0, ReadaheadAlloc::Wait), (256, ReadaheadAlloc::BestEffort)]
                {
                    let engine = EngineOptions { workers, cache_bytes, reserved_pages, ..EngineOptions::default() };
                    let defaults = VolumeOptions::default();
                    let volume = VolumeOptions {
                        sync_decompress,
                        readahead_alloc,
                        fetch_around_bytes: if reserved_pages == 0 { 0 } else { defaults.fetch_around_bytes },
                        ..defaults
                    };
                    all.push((engine, volume));
                }
            }
        }
    }
    all
}

/// Reads a range of a file in requests like the kernel's, all at once.
fn read(reader: &Reader, nid: Nid, range: ByteRange) -> Result<Vec<u8>, Error> {
    let (sender, answers) = mpsc::channel();
    let starts: Vec<u64> = (range.offset()..range.end()).step_by(REQUEST_BYTES as usize).collect();
    for (index, &start) in starts.iter().enumerate() {
        let len = (range.end() - start).min(REQUEST_BYTES) as u32;
        let sender = sender.clone();
        reader.read_then(nid, start, len, move |result| {
            sender.send((index, result.map(<[u8]>::to_vec))).expect("somebody waits");
        });
    }
    drop(sender);
    let mut parts: Vec<_> = answers.iter().collect();
    assert_eq!(parts.len(), starts.len(), "each request is answered once");
    parts.sort_by_key(|(index, _)| *index);
    let mut bytes = Vec::new();
    for (_, part) in parts {
        bytes.extend_from_slice(&part?);
    }
    Ok(bytes)
}

/// The faults of an image that is read with these switches.
fn complaints(corpus: &Corpus, record: &ImageRecord, options: &(EngineOptions, VolumeOptions)) -> Vec<String> {
    let files = corpus.materialise(record);
    let offset = if files.offset == 0 { Offset::None } else { Offset::At(files.offset) };
    let (engine, volume) = options.clone();
    let devices = files.devices.clone();
    let open = OpenOptions { offset, devices, engine, volume, ..OpenOptions::default() };
    let image = Image::open(&files.path, &open).unwrap_or_else(|error| panic!("{error}"));
    let mut told = differences_of(image.reader(), corpus, record);
    told.iter_mut().for_each(|line| *line = format!("{options:?}: {line}"));
    told
}

/// The differences between an image and its manifest.
fn differences_of(reader: &Reader, corpus: &Corpus, record: &ImageRecord) -> Vec<String> {
    let found = walk::image(reader.file_system().as_ref(), &|nid, range| read(reader, nid, range));
    match found {
        Ok(found) => {
            let directory_shape_is_free = !record.kernel_is_truth();
            let comparison = Comparison { directory_shape_is_free, ..Comparison::default() };
            differences(&corpus.manifest(record), &found, &comparison)
        }
        Err(error) => vec![error.to_string()],
    }
}

/// The differences found in an image while half of all requests to its source must wait.
fn differences_while_half_is_in_memory(corpus: &Corpus, record: &ImageRecord) -> Vec<String> {
    let files = corpus.materialise(record);
    let mut bytes = fs::read(&files.path).expect("an image");
    bytes.drain(..files.offset as usize);
    let source: Arc<dyn ImageSource> = Arc::new(MemorySource::new(bytes));
    let format = Format::of(source.as_ref()).expect("in memory").expect("an image");
    let engine = floe::Engine::new(&EngineOptions::default()).expect("an engine");
    let volume = engine.attach(vec![Arc::new(HalfCachedSource::new(source))], &VolumeOptions::default());
    let blocks = volume.block_reader(Blocking::Allowed);
    let file_system: Result<Arc<dyn FileSystem>, Error> = match format {
        Format::Erofs => Erofs::open(blocks).map(|erofs| Arc::new(erofs) as _),
        Format::Squashfs => Squashfs::open(blocks).map(|squashfs| Arc::new(squashfs) as _),
    };
    let file_system = file_system.unwrap_or_else(|error| panic!("{error}"));
    differences_of(&Reader::new(volume, file_system), corpus, record)
}

#[test]
fn images_are_read_exactly_while_half_of_them_is_in_memory() {
    let corpus = Corpus::locate_or_fixtures();
    let mut rows = corpus.sample();
    rows.retain(|image| !image.huge && image.devices.is_empty());
    check_rows(&rows, |record| record.name.clone(), |record| differences_while_half_is_in_memory(&corpus, record));
}

#[test]
fn a_sample_of_the_combinations_reads_the_images_exactly() {
    let (corpus, all) = (Corpus::locate_or_fixtures(), combinations());
    assert_eq!(all.len(), 24);
    let rows: Vec<_> = corpus.sample().into_iter().filter(|image| !image.huge).enumerate().collect();
    check_rows(
        &rows,
        |(_, record)| record.name.clone(),
        |(number, record)| {
            let chosen = (0..SAMPLE_COUNT).map(|index| &all[(number * SAMPLE_COUNT + index) * 5 % all.len()]);
            chosen.flat_map(|engine| complaints(&corpus, record, engine)).collect()
        },
    );
}

#[test]
#[ignore = "takes minutes: cargo test -p floe --test library -- --ignored"]
fn all_combinations_read_the_images_exactly() {
    let (corpus, all) = (Corpus::locate_or_fixtures(), combinations());
    let rows: Vec<_> = corpus.sample().into_iter().filter(|image| !image.huge).collect();
    check_rows(
        &rows,
        |record| record.name.clone(),
        |record| all.iter().flat_map(|engine| complaints(&corpus, record, engine)).collect(),
    );
}

#[test]
fn a_filter_is_asked_only_where_it_decides() {
    let demo = workspace_root().join("fixtures/demo.erofs");
    let image = Image::open(demo, &OpenOptions::default()).expect("an image");
    let folder = tempfile::tempdir().expect("a folder");
    let mut asked = Vec::new();
    let mut choose = |entry: &WalkEntry| {
        let path = String::from_utf8_lossy(&entry.path).into_owned();
        let choice = match path.as_str() {
            "/guide" => Choice::TakeAll,
            "/records" | "/maps/drift.txt" => Choice::LeaveOut,
            _ => Choice::Take,
        };
        asked.push(path);
        choice
    };
    let options = ExtractOptions::default();
    let parts = Parts::Where(&mut choose);
    let summary = extract(&image, parts, folder.path(), &options, &|_| (), &AtomicBool::new(false)).expect("extracted");
    assert_eq!(summary.failures, 0);
    assert_eq!(asked, ["/README.txt", "/guide", "/maps", "/maps/drift.txt", "/maps/open-water", "/records"]);
    for (name, is_there) in [
        ("README.txt", true),
        ("guide/reading.txt", true),
        ("maps/open-water", true),
        ("maps/drift.txt", false),
        ("records", false),
    ] {
        assert_eq!(folder.path().join(name).symlink_metadata().is_ok(), is_there, "{name}");
    }
}
