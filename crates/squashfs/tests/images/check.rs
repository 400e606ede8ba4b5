//! A check finds no fault in valid images, and the fault of each corrupt one.

use floe_image::{
    BlockReader, ByteRange, ByteRangeSet, Encoding, ExtentData, FileSystem, FileType, Finding, StoredLen,
};
use floe_squashfs::{Squashfs, check};
use floe_testkit::{
    check_rows,
    corpus::{Corpus, CorruptImage, Format, ImageRecord},
    skip,
};

use crate::memo_reader::MemoReader;

/// Runs a check and decodes the blocks that it returns.
pub(crate) fn findings(reader: &MemoReader, squashfs: &Squashfs) -> Vec<Finding> {
    let (mut found, mut blocks) = (Vec::new(), Vec::new());
    let summary = check::run(squashfs, &mut |finding| found.push(finding), &mut |block| blocks.push(block), &|| false);
    assert_eq!(summary.block_count, blocks.len() as u64);
    assert_eq!(summary.error_count + summary.warning_count, found.len() as u64);
    for block in &blocks {
        let decoded = reader.direct().decoded(&block.block);
        found.extend(block.judge(decoded.as_ref().map(|decoded| decoded.bytes.len())));
    }
    found
}

#[test]
fn valid_images_have_no_findings() {
    let corpus = Corpus::locate_or_fixtures();
    let images = corpus.sample().into_iter();
    let images: Vec<ImageRecord> = images.filter(|image| image.format == Format::Squashfs).collect();
    check_rows(
        &images,
        |image| image.name.clone(),
        |image| {
            let reader = MemoReader::of_image(&corpus, image);
            let squashfs = Squashfs::open(reader.clone()).expect("opened");
            findings(&reader, &squashfs).iter().map(Finding::to_string).collect()
        },
    );
}

/// Corrupt images whose fault is harmless.
const HARMLESS: &[&str] = &[
    // The data position of a file without data.
    "sqfs-file-start",
];

#[test]
fn corrupt_images_have_findings() {
    let corpus = Corpus::locate_or_fixtures();
    let images: Vec<CorruptImage> =
        corpus.corrupt_images().into_iter().filter(|image| image.format() == Format::Squashfs).collect();
    check_rows(
        &images,
        |image| image.name.clone(),
        |image| {
            let reader = MemoReader::of(corpus.corrupt_bytes(image));
            let found = match Squashfs::open(reader.clone()) {
                Ok(squashfs) => findings(&reader, &squashfs),
                Err(_) => return Vec::new(),
            };
            let is_harmless = HARMLESS.contains(&&*image.name);
            if is_harmless == found.is_empty() { Vec::new() } else { vec![format!("{found:?}")] }
        },
    );
}

#[test]
fn a_reference_that_is_not_the_first_to_its_value_is_checked_too() {
    let corpus = Corpus::fixtures();
    let image = corpus.corrupt_images().into_iter().find(|image| image.name == "sqfs-xattr-reference-short");
    let reader = MemoReader::of(corpus.corrupt_bytes(&image.expect("it is in fixtures/")));
    let squashfs = Squashfs::open(reader.clone()).expect("opened");
    let found: Vec<String> = findings(&reader, &squashfs).iter().map(Finding::to_string).collect();
    let rule = "error: reference to an attribute's value is not 8 bytes";
    assert!(found.iter().any(|finding| finding.starts_with(rule)), "{found:?}");
}

#[test]
fn findings_name_severity_path_rule_and_place() {
    let corpus = Corpus::locate_or_fixtures();
    for (name, expected) in [
        ("sqfs-dir-loop-self", "error: /dir/sub: directory is listed twice (inode 376)"),
        ("sqfs-entry-type", "error: /dir/five: dirent type differs from that of its inode (inode 152)"),
        ("sqfs-file-sparse-max", "error: /sparse: file has more bytes in holes than its size (inode 522)"),
        ("sqfs-symlink-empty", "error: /link: symbolic link without a target (inode 464)"),
        ("sqfs-dir-parent", "error: /dir: directory's parent is not the directory that lists it (inode 376)"),
        ("sqfs-xattr-type", "warning: attribute with an unknown prefix, which is not shown (byte 39633)"),
        ("sqfs-gzip-bomb-fragment", "error: /z-attr: block decodes to more than its stated length"),
    ] {
        let Some(image) = corpus.corrupt_images().into_iter().find(|image| image.name == name) else {
            skip::skipped(&format!("{name} is not there"));
            continue;
        };
        let reader = MemoReader::of(corpus.corrupt_bytes(&image));
        let squashfs = Squashfs::open(reader.clone()).expect("opened");
        let found: Vec<String> = findings(&reader, &squashfs).iter().map(Finding::to_string).collect();
        assert!(found.iter().any(|finding| finding.starts_with(expected)), "{name}: {found:?}");
    }
}

#[test]
fn all_uncompressed_data_is_passed_to_the_caller() {
    let corpus = Corpus::fixtures();
    let images = corpus.images().into_iter();
    let images: Vec<ImageRecord> = images.filter(|image| image.format == Format::Squashfs).collect();
    let mut plain_count = 0;
    for image in &images {
        let reader = MemoReader::of_image(&corpus, image);
        let squashfs = Squashfs::open(reader).expect("opened");
        let mut passed = ByteRangeSet::default();
        let mut pass = |block: check::BlockToDecode| {
            let StoredLen::Known(len) = block.block.stored_len else { panic!("data has a length") };
            let is_known = passed.insert(ByteRange::new(block.block.offset, len.into()));
            assert!(!is_known || block.block.encoding != Encoding::Stored, "{}: {block:?}", image.name);
        };
        check::run(&squashfs, &mut |_| {}, &mut pass, &|| false);
        for number in 1..=squashfs.inode_number_max() {
            let nid = squashfs.find_number(number).expect("found").unwrap_or(squashfs.root());
            let mut extents = Vec::new();
            if squashfs.attr(nid).expect("read").file_type == FileType::Regular {
                squashfs.map(nid, ByteRange::new(0, u64::MAX), &mut extents).expect("mapped");
            }
            for extent in extents {
                let ExtentData::Plain { offset, .. } = extent.data else { continue };
                plain_count += 1;
                let range = ByteRange::new(offset, extent.range.len());
                passed.insert_each_new(range, |new| panic!("{}: {new} is not passed", image.name));
            }
        }
    }
    assert!(plain_count > 10, "{plain_count} uncompressed extents");
}
