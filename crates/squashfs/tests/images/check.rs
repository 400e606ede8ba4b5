//! Checks and descriptions of images.

use floe_image::{
    BlockReader, ByteRange, ByteRangeSet, Encoding, ExtentData, FileSystem, FileType, Finding, StoredLen,
};
use floe_squashfs::{Squashfs, check, dump};
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

fn open(name: &str) -> Squashfs {
    let corpus = Corpus::fixtures();
    Squashfs::open(MemoReader::of_image(&corpus, &corpus.image(name))).expect("opened")
}

#[test]
fn an_image_is_described_in_words() {
    for (name, expected) in [
        ("sqfs-cbase-noI", &["compressor:         gzip\n", "block size:         131072 bytes\n"][..]),
        ("sqfs-lz4-hc", &["compressor:         lz4 (high compression)\n", "export table:"]),
        ("sqfs-xz-bcj-x86", &["compressor:         xz (dictionary 131072 bytes, filters x86)\n"]),
        ("sqfs-noX-noId-lz4", &["uncompressed-xattrs", "uncompressed-ids", "attributes:"]),
    ] {
        let told = dump::describe_image(&open(name)).to_string();
        for part in expected {
            assert!(told.contains(part), "{name}: no {part:?} in\n{told}");
        }
    }
}

#[test]
fn inodes_data_and_tables_are_counted() {
    let squashfs = open("sqfs-cbase-noI");
    let statistics = dump::count(&squashfs).expect("counted");
    let inode_count: u64 = statistics.inodes.counts.values().sum();
    assert_eq!(inode_count, squashfs.info().inode_count);
    assert_eq!(statistics.inodes.counts.get(&(FileType::Symlink, false)), Some(&1));
    let data = &statistics.data;
    assert!(data.hole_block_count > 0 && data.compressed_block_count > 0 && data.tail_count > 0, "{data:?}");
    assert!(data.compressed_stored_bytes + data.fragment_stored_bytes <= data.area_bytes);
    let names: Vec<&str> = statistics.tables.iter().map(|table| table.name).collect();
    let expected = [
        "inode table",
        "directory table",
        "fragment table",
        "export table",
        "id table",
        "attributes",
        "attribute id table",
    ];
    assert_eq!(names, expected);
    let inodes = &statistics.tables[0];
    assert_eq!(inodes.stored_bytes, inodes.decoded_bytes + 2 * inodes.block_count, "they are not compressed");
    let told = statistics.to_string();
    assert!(told.contains("basic inodes of type l: 1\n"), "{told}");
}

#[test]
fn an_inode_is_described_with_its_extents() {
    let squashfs = open("sqfs-cbase-noI");
    let describe = |name: &[u8]| {
        let nid = squashfs.lookup(squashfs.root(), name).expect("looked up").expect("found");
        dump::describe_inode(&squashfs, nid).expect("described").to_string()
    };
    for (name, expected) in [
        (&b"sparse"[..], &["type:               f (extended)\n", ": hole\n", "compressed bytes from byte 96"][..]),
        (b"x-attr", &["attribute:          user.name\n", "attribute set:      "]),
        (b"link", &["type:               l (basic)\n", "target:             dir/sub"]),
        (b"dir", &["parent inode number: 281\n"]),
    ] {
        let told = describe(name);
        for part in expected {
            assert!(told.contains(part), "no {part:?} in\n{told}");
        }
    }
}
