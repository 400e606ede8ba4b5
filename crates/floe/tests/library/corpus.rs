//! Reference images and generated trees, read through the library.

use std::{path::Path, process::Command, sync::atomic::AtomicBool};

use floe::{
    ByteRange, EngineOptions, ExtractEvent, ExtractOptions, Image, Offset, OpenOptions, Parts, VolumeOptions, extract,
};
use floe_testkit::{
    Tree, Versions, check_rows,
    corpus::{Corpus, ImageRecord, Materialised},
    manifest::{Comparison, differences},
    peer,
    skip::{self, Need},
    walk::{self, DirectoryWalk},
};

fn images(corpus: &Corpus) -> Vec<ImageRecord> {
    corpus.sample().into_iter().filter(|image| !image.huge).collect()
}

fn open(files: &Materialised) -> Image {
    let offset = if files.offset == 0 { Offset::None } else { Offset::At(files.offset) };
    let options = OpenOptions {
        offset,
        devices: files.devices.clone(),
        engine: EngineOptions::default(),
        ..OpenOptions::default()
    };
    Image::open(&files.path, &options).unwrap_or_else(|error| panic!("{error}"))
}

/// The differences between an image and its manifest.
pub(crate) fn complaints(image: &Image, corpus: &Corpus, record: &ImageRecord) -> Vec<String> {
    let read = |nid, range: ByteRange| {
        let mut bytes = vec![0; range.len() as usize];
        let len = image.read_at(nid, range.offset(), &mut bytes)?;
        bytes.truncate(len);
        Ok(bytes)
    };
    match walk::image(image.file_system().as_ref(), &read) {
        Ok(found) => {
            // For images that the kernel cannot mount, other tools produced the expected directories.
            let directory_shape_is_free = !record.kernel_is_truth();
            let comparison = Comparison { directory_shape_is_free, ..Comparison::default() };
            differences(&corpus.manifest(record), &found, &comparison)
        }
        Err(error) => vec![error.to_string()],
    }
}

#[test]
fn images_match_their_manifests() {
    let corpus = Corpus::locate_or_fixtures();
    check_rows(
        &images(&corpus),
        |record| record.name.clone(),
        |record| complaints(&open(&corpus.materialise(record)), &corpus, record),
    );
}

#[test]
fn extracted_images_match_their_manifests() {
    if !skip::ready(&[skip::Need::Root]) {
        return;
    }
    let corpus = Corpus::locate_or_fixtures();
    check_rows(
        &images(&corpus),
        |record| record.name.clone(),
        |record| {
            let image = open(&corpus.materialise(record));
            // `/dev/shm` holds attributes of any size; ext4 has one block for them.
            let memory = Path::new("/dev/shm");
            let scratch = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
            let folder = tempfile::tempdir_in(scratch).expect("a scratch folder");
            let target = folder.path().join("extracted");
            let setbacks = std::sync::Mutex::new(Vec::new());
            let tell = |event: ExtractEvent<'_>| {
                if let ExtractEvent::Warning(warning) = event {
                    setbacks.lock().expect("no panic").push(format!("{warning:?}"));
                }
            };
            let options = ExtractOptions { jobs: 3, ..ExtractOptions::default() };
            let summary =
                extract(&image, Parts::All, &target, &options, &tell, &AtomicBool::new(false)).expect("extracted");
            let mut told = setbacks.into_inner().expect("no panic");
            let comparison = Comparison { directory_shape_is_free: true, ..Comparison::default() };
            let found = walk::directory(&target, walk::DirectoryWalk::default()).expect("readable");
            told.extend(differences(&corpus.manifest(record), &found, &comparison));
            if summary.denied() > 0 {
                told.push(format!("{summary:?}"));
            }
            told
        },
    );
}

/// Corrupted images that are nevertheless valid: chunks may have that size; a Zstandard frame without a checksum
/// decodes to other bytes; a file without data needs no location.
const HARMLESS: &[&str] = &["erofs-chunk-bits-31", "erofs-zstd-flip", "sqfs-file-start"];

fn findings(path: &Path, open: &OpenOptions) -> Vec<String> {
    let found = std::sync::Mutex::new(Vec::new());
    let tell = |finding: &floe::Finding| found.lock().expect("no panic").push(format!("{finding:?}"));
    let options = floe::CheckOptions { jobs: 2, data: true };
    let summary = floe::check(path, open, &options, &tell, &AtomicBool::new(false));
    let mut found = found.into_inner().expect("no panic");
    match summary {
        Ok(summary) if summary.errors + summary.warnings == found.len() as u64 => {}
        Ok(summary) => found.push(format!("{summary:?}")),
        Err(error) => found.push(error.to_string()),
    }
    found
}

#[test]
fn checks_find_nothing_in_good_images() {
    let corpus = Corpus::locate_or_fixtures();
    check_rows(
        &images(&corpus),
        |record| record.name.clone(),
        |record| {
            let files = corpus.materialise(record);
            let offset = if files.offset == 0 { Offset::None } else { Offset::At(files.offset) };
            findings(&files.path, &OpenOptions { offset, devices: files.devices, ..OpenOptions::default() })
        },
    );
}

#[test]
fn a_block_whose_parts_cannot_be_read_is_a_finding() {
    let corpus = Corpus::fixtures();
    let record = corpus.corrupt_images().into_iter().find(|image| image.name == "erofs-lz4-distance-zero");
    let path = corpus.materialise_corrupt(&record.expect("it is in fixtures/"));
    let rule = "LZ4 match distance of zero";
    let found = findings(&path, &OpenOptions::default());
    assert!(found.len() == 1 && found[0].contains(rule), "{found:?}");
    // Without a cache, only the requested part of the block is decoded.
    let engine = EngineOptions { cache_bytes: 0, cache_growth_bytes: 0, ..EngineOptions::default() };
    let volume = VolumeOptions { read_around: false, ..VolumeOptions::default() };
    let image = Image::open(&path, &OpenOptions { engine, volume, ..OpenOptions::default() }).expect("opened");
    let nid = image.resolve("/text131073").expect("it is there");
    let error = image.read_at(nid, 100_000, &mut [0; 100]).expect_err("a part of the block");
    assert!(error.to_string().contains(rule), "{error}");
}

#[test]
fn checks_find_something_in_corrupt_images() {
    let corpus = Corpus::locate_or_fixtures();
    check_rows(
        &corpus.corrupt_images(),
        |record| record.name.clone(),
        |record| {
            let found = findings(&corpus.materialise_corrupt(record), &OpenOptions::default());
            if found.is_empty() != HARMLESS.contains(&record.name.as_str()) {
                return vec![format!("{} findings: {}", found.len(), record.note)];
            }
            Vec::new()
        },
    );
}

/// Options for mkfs.erofs.
const EROFS_OPTIONS: [&str; 14] = [
    "",
    "-b512",
    "-Enoinline_data",
    "--chunksize=4096",
    "-zlz4",
    "-zlz4 -C65536 -Eztailpacking",
    "-zlz4 -Elegacy-compress",
    "-zlz4hc -C1048576 -Eall-fragments,dedupe",
    "-zlz4:lzma:zstd:deflate -C16384",
    "-zlzma -C65536 -Eztailpacking,fragments",
    "-zdeflate -C16384",
    "-zzstd -C65536 -Efragments",
    "-zlz4 -E48bit",
    "-zzstd -C16384 -m4096",
];

#[test]
fn trees_made_into_images_are_read_as_they_were() {
    if !skip::ready(&[Need::PeerOf("mkfs.erofs", Versions::Since("1.9"))]) {
        return;
    }
    let mkfs = peer("mkfs.erofs").expect("it is there");
    let folder = tempfile::tempdir().expect("a folder");
    let source = folder.path().join("source");
    Tree::small(20).write(&source).expect("written");
    let expected = walk::directory(&source, DirectoryWalk::default()).expect("walked");
    check_rows(
        &EROFS_OPTIONS,
        |options| format!("mkfs.erofs {options}"),
        |options| {
            let path = folder.path().join(format!("image {options}"));
            let mut command = Command::new(&mkfs);
            // Only the larger form of inodes has nanoseconds.
            command.args(["--quiet", "-Eforce-inode-extended"]).args(options.split_whitespace());
            let output = command.arg(&path).arg(&source).output().expect("mkfs.erofs runs");
            if !output.status.success() {
                return vec![String::from_utf8_lossy(&output.stderr).into_owned()];
            }
            let image = match Image::open(&path, &OpenOptions::default()) {
                Ok(image) => image,
                Err(error) => return vec![error.to_string()],
            };
            let read = |nid, range: ByteRange| {
                let mut bytes = vec![0; range.len() as usize];
                let len = image.read_at(nid, range.offset(), &mut bytes)?;
                bytes.truncate(len);
                Ok(bytes)
            };
            let found = walk::image(image.file_system().as_ref(), &read).expect("walked");
            let comparison = Comparison { directory_shape_is_free: true, ..Comparison::default() };
            differences(&expected, &found, &comparison)
        },
    );
}
