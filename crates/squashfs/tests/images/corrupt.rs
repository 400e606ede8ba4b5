//! Corrupt images, also by arbitrary changed bytes: errors, never a panic, a hang or a contradiction.

use std::{collections::BTreeMap, sync::LazyLock, time::Duration};

use floe_squashfs::{Squashfs, check, dump};
use floe_testkit::{
    check_rows,
    corpus::{Corpus, CorruptImage, Format},
    thread_cpu_time,
};
use proptest::prelude::*;

use crate::memo_reader::MemoReader;

/// Prefix of errors that come from the decoders.
const DECODER: &str = "corrupt image: ";

/// The first error of reading each image completely, as a prefix. Empty if everything requested can be read; a check
/// finds more.
const FIRST_ERRORS: &[(&str, &str)] = &[
    ("sqfs-block-word-long", "corrupt image: stored block exceeds the block size"),
    ("sqfs-block-word-max", "corrupt image: unknown bits in the size of a block"),
    (
        "sqfs-block-word-uncompressed",
        "corrupt image: uncompressed data block has the wrong length (inode 522, byte 96)",
    ),
    ("sqfs-dir-count-256", "corrupt image: directory header of more than 256 dirents"),
    ("sqfs-dir-count-max", "corrupt image: directory header of more than 256 dirents"),
    (
        "sqfs-dir-header-block",
        "corrupt image: metadata block outside its table (inode 281474976645464, byte 4294985452)",
    ),
    (
        "sqfs-dir-loop-root",
        "corrupt image: inode number is 0 or past the number of inodes (inode 537002328, byte 26351)",
    ),
    ("sqfs-dir-loop-self", ""),
    ("sqfs-dir-meta-len-max", "corrupt image: metadata block past the end of the image"),
    ("sqfs-dir-offset", "corrupt image: metadata reference past the end of its block"),
    ("sqfs-dir-parent", "corrupt image: directory whose parent does not exist"),
    ("sqfs-dir-size-2", "corrupt image: directory of fewer than 3 bytes"),
    ("sqfs-dir-size-cut", "corrupt image: dirent past the end of its directory"),
    ("sqfs-dir-size-max", "corrupt image: directory is not sorted or has duplicate names"),
    ("sqfs-dir-start", "corrupt image: metadata block outside its table"),
    ("sqfs-entry-offset", "corrupt image: metadata reference past the end of its block"),
    ("sqfs-entry-size-256", "corrupt image: dirent past the end of its directory"),
    ("sqfs-entry-size-max", "corrupt image: dirent past the end of its directory"),
    ("sqfs-entry-type", ""),
    ("sqfs-entry-type-0", "corrupt image: dirent of an unknown type"),
    ("sqfs-entry-type-ext", "corrupt image: dirent of an unknown type"),
    ("sqfs-file-fragment", "corrupt image: fragment index past the fragment table"),
    ("sqfs-file-fragoff", "corrupt image: tail end past the end of its fragment"),
    ("sqfs-file-fragoff-neg", "corrupt image: tail end past the end of its fragment"),
    ("sqfs-file-size-2e60", "corrupt image: stored block exceeds the block size"),
    ("sqfs-file-size-max", "corrupt image: stored block exceeds the block size"),
    ("sqfs-file-sparse-max", ""),
    ("sqfs-file-start", ""),
    (
        "sqfs-file-start-2e63",
        "corrupt image: data block past the end of the file system (inode 522, byte 9223372036854775808)",
    ),
    ("sqfs-file-xattr", "corrupt image: attribute set past the attribute id table"),
    ("sqfs-fragment-raw", "corrupt image: tail end past the end of its fragment"),
    ("sqfs-fragment-size-0", "corrupt image: empty block"),
    ("sqfs-fragment-size-max", "corrupt image: stored block exceeds the block size (inode 537002899, byte 420)"),
    (
        "sqfs-fragment-start",
        "corrupt image: fragment block past the end of the file system (inode 537002899, byte 1125899906842624)",
    ),
    ("sqfs-fragment-superblock", DECODER),
    ("sqfs-fragtable-pointer", "corrupt image: blocks of the fragment table are not consecutive"),
    ("sqfs-fragtable-self", "corrupt image: blocks of the fragment table are not consecutive"),
    ("sqfs-gzip-bomb-fragment", ""),
    ("sqfs-gzip-bomb-inodes", DECODER),
    ("sqfs-gzip-data-flip", DECODER),
    ("sqfs-gzip-data-garbage", DECODER),
    ("sqfs-gzip-inodes-garbage", DECODER),
    ("sqfs-gzip-inodes-len", DECODER),
    ("sqfs-idtable-pointer", "corrupt image: blocks of the id table are not consecutive"),
    ("sqfs-idtable-self", "corrupt image: blocks of the id table are not consecutive"),
    ("sqfs-inode-number-0", "corrupt image: inode number is 0 or past the number of inodes"),
    ("sqfs-inode-number-max", "corrupt image: inode number is 0 or past the number of inodes"),
    ("sqfs-inode-type-0", "corrupt image: inode of an unknown type"),
    ("sqfs-inode-type-99", "corrupt image: inode of an unknown type"),
    ("sqfs-inode-type-dir", "corrupt image: directory is not sorted or has duplicate names"),
    ("sqfs-inode-uid", "corrupt image: id index past the id table"),
    ("sqfs-meta-compressed", DECODER),
    ("sqfs-meta-len-0", "corrupt image: empty metadata block"),
    ("sqfs-meta-len-max", "corrupt image: metadata block past the end of the image"),
    ("sqfs-name-dotdot", "corrupt image: name contains a slash or NUL"),
    ("sqfs-name-duplicate", "corrupt image: directory is not sorted or has duplicate names"),
    ("sqfs-name-nul", "corrupt image: name contains a slash or NUL"),
    ("sqfs-name-slash", "corrupt image: name contains a slash or NUL"),
    ("sqfs-name-unsorted", "corrupt image: directory is not sorted or has duplicate names"),
    ("sqfs-sb-blocklog", "corrupt image: block size and its logarithm differ"),
    ("sqfs-sb-blocklog-max", "corrupt image: block size is not between 4 KiB and 1 MiB"),
    ("sqfs-sb-blocksize-0", "corrupt image: block size and its logarithm differ"),
    ("sqfs-sb-blocksize-2m", "corrupt image: block size and its logarithm differ"),
    ("sqfs-sb-blocksize-odd", "corrupt image: block size and its logarithm differ"),
    ("sqfs-sb-comp-0", "not supported: SquashFS compressor 0"),
    ("sqfs-sb-comp-7", "not supported: SquashFS compressor 7"),
    ("sqfs-sb-comp-wrong", DECODER),
    ("sqfs-sb-dir-96", "corrupt image: inode table is not before the directory table"),
    ("sqfs-sb-dir-wild", "corrupt image: directory table runs into the next table"),
    ("sqfs-sb-flags", DECODER),
    ("sqfs-sb-frag-96", "corrupt image: blocks of the fragment table are not consecutive"),
    ("sqfs-sb-frag-none", "corrupt image: fragments without a fragment table"),
    ("sqfs-sb-frag-wild", "corrupt image: list of the fragment table runs into the next table"),
    ("sqfs-sb-fragments-max", "corrupt image: list of the fragment table runs into the next table"),
    ("sqfs-sb-id-96", "corrupt image: list of the id table does not end where the next table begins"),
    (
        "sqfs-sb-id-wild",
        "corrupt image: list of the id table does not end where the next table begins (byte 1099511627776)",
    ),
    ("sqfs-sb-ids-0", "corrupt image: there are no ids"),
    ("sqfs-sb-ids-max", "corrupt image: list of the id table does not end where the next table begins"),
    ("sqfs-sb-inode-96", DECODER),
    ("sqfs-sb-inode-wild", "corrupt image: inode table is not before the directory table"),
    (
        "sqfs-sb-inodes-0",
        "corrupt image: list of the export table does not end where the next table begins (byte 39611)",
    ),
    (
        "sqfs-sb-inodes-max",
        "corrupt image: list of the export table does not end where the next table begins (byte 39611)",
    ),
    ("sqfs-sb-lookup-96", "corrupt image: list of the export table does not end where the next table begins"),
    (
        "sqfs-sb-lookup-wild",
        "corrupt image: list of the export table does not end where the next table begins (byte 1099511627776)",
    ),
    ("sqfs-sb-magic", "corrupt image: no SquashFS magic number"),
    ("sqfs-sb-major-3", "not supported: SquashFS version 3.0; only 4.0 is read"),
    ("sqfs-sb-major-5", "not supported: SquashFS version 5.0; only 4.0 is read"),
    ("sqfs-sb-root-block", "corrupt image: metadata block outside its table"),
    ("sqfs-sb-root-file", "corrupt image: root is not a directory"),
    ("sqfs-sb-root-max", "corrupt image: inode reference of more than 48 bits"),
    (
        "sqfs-sb-root-offset",
        "corrupt image: metadata reference past the end of its block (inode 537010176, byte 26351)",
    ),
    ("sqfs-sb-tables-swapped", "corrupt image: inode table is not before the directory table"),
    ("sqfs-sb-used-0", "corrupt image: file system is shorter than its superblock"),
    ("sqfs-sb-used-max", "corrupt image: file system is longer than the image, which may be cut short"),
    (
        "sqfs-sb-xattr-96",
        "corrupt image: list of the attribute id table does not end where the file system does (byte 112)",
    ),
    ("sqfs-sb-xattr-wild", "corrupt image: attribute id table past the end of the file system"),
    ("sqfs-shared-block-stored-length", "corrupt image: stored bytes of a block end early (byte 96)"),
    ("sqfs-symlink-empty", ""),
    ("sqfs-symlink-huge", "corrupt image: symbolic link of more than 4096 bytes"),
    ("sqfs-symlink-max", "corrupt image: symbolic link of more than 4096 bytes"),
    ("sqfs-symlink-nul", "corrupt image: symbolic link target contains NUL"),
    ("sqfs-trunc-0", "corrupt image: image is shorter than a superblock"),
    ("sqfs-trunc-4096", "corrupt image: file system is longer than the image, which may be cut short"),
    ("sqfs-trunc-50", "corrupt image: image is shorter than a superblock"),
    ("sqfs-trunc-95", "corrupt image: image is shorter than a superblock"),
    ("sqfs-trunc-96", "corrupt image: file system is longer than the image, which may be cut short"),
    ("sqfs-trunc-end", "corrupt image: file system is longer than the image, which may be cut short"),
    ("sqfs-trunc-half", "corrupt image: file system is longer than the image, which may be cut short"),
    ("sqfs-xattr-count-max", "corrupt image: set exceeds 65536 attributes"),
    ("sqfs-xattr-ids-0", "corrupt image: attribute id table without attribute sets"),
    (
        "sqfs-xattr-ids-max",
        "corrupt image: list of the attribute id table does not end where the file system does (byte 39852)",
    ),
    ("sqfs-xattr-namesize", "corrupt image: metadata block outside its table"),
    ("sqfs-xattr-ool", "corrupt image: reference to an attribute's value is not 8 bytes"),
    ("sqfs-xattr-ref", "corrupt image: attribute reference of more than 48 bits"),
    ("sqfs-xattr-reference-short", "corrupt image: reference to an attribute's value is not 8 bytes"),
    ("sqfs-xattr-size-max", ""),
    ("sqfs-xattr-start", "corrupt image: attributes do not precede the attribute id table"),
    ("sqfs-xattr-type", ""),
    ("sqfs-xattr-valuesize", "corrupt image: attribute value of more than 64 KiB"),
    ("sqfs-zstd-data-flip", DECODER),
    ("sqfs-zstd-data-garbage", DECODER),
    (
        "sqfs-zstd-inodes-garbage",
        "corrupt image: inode number is 0 or past the number of inodes (inode 32, byte 22129)",
    ),
    ("sqfs-zstd-inodes-len", DECODER),
];

#[test]
fn every_corrupt_image_gives_the_error_of_its_fault() {
    let corpus = Corpus::locate_or_fixtures();
    let expected: BTreeMap<&str, &str> = FIRST_ERRORS.iter().copied().collect();
    let images: Vec<CorruptImage> =
        corpus.corrupt_images().into_iter().filter(|image| image.format() == Format::Squashfs).collect();
    assert!(!images.is_empty());
    check_rows(
        &images,
        |image| image.name.clone(),
        |image| {
            let reader = MemoReader::of(corpus.corrupt_bytes(image));
            let found = match Squashfs::open(reader.clone()) {
                Ok(squashfs) => crate::read_all::errors(&reader, &squashfs).into_iter().next().unwrap_or_default(),
                Err(error) => error.to_string(),
            };
            match expected.get(&*image.name) {
                Some(expected) if found.starts_with(expected) && expected.is_empty() == found.is_empty() => Vec::new(),
                other => vec![format!("{found:?}, not {other:?}")],
            }
        },
    );
}

/// Small images with uncompressed metadata, so that changes reach the parsers.
static IMAGES: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let corpus = Corpus::fixtures();
    let names = ["sqfs-cbase-noI", "sqfs-cbase-zstd-noI", "sqfs-tiny"];
    names.map(|name| corpus.bytes(&corpus.image(name).image)).into()
});

/// A generous limit for all requests on an image of 40 KiB, in CPU time.
const CPU_TIME_MAX: Duration = Duration::from_secs(20);

fn ask_everything(bytes: Vec<u8>) {
    let began = thread_cpu_time();
    let reader = MemoReader::of(bytes);
    if let Ok(squashfs) = Squashfs::open(reader.clone()) {
        let errors = crate::read_all::errors(&reader, &squashfs);
        let summary = check::run(&squashfs, &mut |_| {}, &mut |_| {}, &|| false);
        assert!(summary.inode_count <= u64::from(squashfs.superblock().inode_count) * 256 + 100_000);
        if errors.iter().any(|error| error.contains(crate::read_all::LISTED_AND_NOT_FOUND)) {
            assert!(summary.error_count > 0, "a check finds why: {errors:?}");
        }
        let _ = dump::describe_image(&squashfs).to_string();
        let _ = dump::count(&squashfs).map(|statistics| statistics.to_string());
    }
    assert!(thread_cpu_time() - began < CPU_TIME_MAX, "{:?}", thread_cpu_time() - began);
}

/// The start of the metadata, where changes matter most.
fn metadata_start(image: &[u8]) -> usize {
    let start = image[64..72].try_into().map(u64::from_le_bytes).expect("eight bytes");
    usize::try_from(start).expect("within the image")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changed_bytes(which in 0..3_usize, changes in prop::collection::vec((any::<prop::sample::Index>(), prop::sample::select(vec![0_u8, 1, 2, 3, 7, 0x7f, 0x80, 0xff, b'/'])), 1..6)) {
        let mut image = IMAGES[which].clone();
        let start = metadata_start(&image);
        for (index, byte) in changes {
            let at = start + index.index(image.len() - start);
            image[at] = byte;
        }
        ask_everything(image);
    }

    #[test]
    fn changed_superblocks(which in 0..3_usize, offset in 4..96_usize, bytes in prop::collection::vec(any::<u8>(), 1..8)) {
        let mut image = IMAGES[which].clone();
        let end = (offset + bytes.len()).min(96);
        image[offset..end].copy_from_slice(&bytes[..end - offset]);
        ask_everything(image);
    }

    #[test]
    fn noise_in_place_of_metadata(which in 0..3_usize, start in any::<prop::sample::Index>(), bytes in prop::collection::vec(any::<u8>(), 1..400)) {
        let mut image = IMAGES[which].clone();
        let first = metadata_start(&image);
        let at = first + start.index(image.len() - first);
        let end = (at + bytes.len()).min(image.len());
        image[at..end].copy_from_slice(&bytes[..end - at]);
        ask_everything(image);
    }

    #[test]
    fn nothing_but_noise(bytes in prop::collection::vec(any::<u8>(), 0..4096)) {
        let mut image = bytes;
        if let Some(head) = image.get_mut(..4) {
            head.copy_from_slice(b"hsqs");
        }
        ask_everything(image);
    }
}
