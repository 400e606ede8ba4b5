//! Descriptions match the contents of an image.

use floe_image::{FileSystem, FileType};
use floe_squashfs::{Squashfs, dump};
use floe_testkit::corpus::Corpus;

use crate::memo_reader::MemoReader;

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
