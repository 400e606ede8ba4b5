//! Reading the end of a file with very many blocks costs no more than reading its beginning.

use std::{fs::File, process::Command, sync::Arc};

use floe_image::{ByteRange, Extent, ExtentData, FileSystem, Nid, SeekTarget};
use floe_squashfs::Squashfs;
use floe_testkit::{
    peer,
    skip::{self, Need},
};

use crate::memo_reader::MemoReader;

/// 1.5 GiB of 4 KiB blocks: a list of 1.5 MiB, in 192 metadata blocks.
const FILE_BYTES: u64 = 1_610_612_736 + 100;

const BLOCK_BYTES: u64 = 4096;

/// The maximum number of metadata blocks that one map may read: the inode, and 256 size words.
const REQUESTS_MAX: u64 = 6;

fn image_of_a_long_file() -> Vec<u8> {
    use std::os::unix::fs::FileExt;
    let folder = tempfile::tempdir().expect("a folder");
    let tree = folder.path().join("tree");
    std::fs::create_dir(&tree).expect("created");
    let file = File::create(tree.join("long")).expect("created");
    file.set_len(FILE_BYTES).expect("lengthened");
    // Distinct data among the holes: a number in every 97th block, and the very last byte.
    for block in (0..FILE_BYTES / BLOCK_BYTES).step_by(97) {
        file.write_all_at(&block.to_le_bytes(), block * BLOCK_BYTES + 5).expect("written");
    }
    file.write_all_at(b"!", FILE_BYTES - 1).expect("written");
    let image = folder.path().join("image");
    let mksquashfs = peer("mksquashfs").expect("asked for");
    let output = Command::new(mksquashfs)
        .args([&tree, &image])
        .args(["-b", "4K", "-noappend", "-no-fragments", "-noI", "-comp", "lz4", "-quiet", "-no-progress"])
        .output()
        .expect("mksquashfs runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::read(image).expect("there")
}

fn map(squashfs: &Squashfs, nid: Nid, range: ByteRange) -> Vec<Extent> {
    let mut extents = Vec::new();
    squashfs.map(nid, range, &mut extents).expect("mapped");
    extents
}

#[test]
fn the_end_is_found_as_fast_as_the_beginning() {
    if !skip::ready(&[Need::Peer("mksquashfs")]) {
        return;
    }
    let reader = MemoReader::of(image_of_a_long_file());
    let squashfs = Arc::new(Squashfs::open(reader.clone()).expect("opened"));
    let nid = squashfs.lookup(squashfs.root(), b"long").expect("looked up").expect("found");
    let whole = map(&squashfs, nid, ByteRange::new(0, u64::MAX));
    assert_eq!(whole.first().map(|extent| extent.range.offset()), Some(0));
    assert_eq!(whole.last().map(|extent| extent.range.end()), Some(FILE_BYTES));
    assert!(whole.windows(2).all(|pair| pair[0].range.end() == pair[1].range.offset()));
    assert!(whole.len() > 8000, "{} extents", whole.len());

    // Several threads read the end of the file from a newly opened image, which records the checkpoints of the list
    // meanwhile.
    let squashfs = Arc::new(Squashfs::open(reader.clone()).expect("opened"));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| map(&squashfs, nid, ByteRange::new(FILE_BYTES - 1, 1)));
        }
    });
    let is_covered = |offset: u64| {
        whole.iter().find(|extent| extent.range.contains(ByteRange::new(offset, 1))).expect("all of it is mapped")
    };
    let mut offset = FILE_BYTES - 1;
    for step in 0..2000 {
        let before = reader.requests();
        let found = map(&squashfs, nid, ByteRange::new(offset, 1));
        let requests = reader.requests() - before;
        assert!(requests <= REQUESTS_MAX, "{requests} metadata blocks for byte {offset}");
        let (found, expected) = (found[0], is_covered(offset));
        assert!(expected.range.contains(found.range), "{found:?} for {expected:?}");
        assert_eq!(found.data == ExtentData::Hole, expected.data == ExtentData::Hole, "byte {offset}");
        if let (ExtentData::Encoded { block: found, .. }, ExtentData::Encoded { block: expected, .. }) =
            (found.data, expected.data)
        {
            assert_eq!(found, expected, "byte {offset}");
        }
        offset = (offset + 7919 * BLOCK_BYTES * (step + 1)) % FILE_BYTES;
    }
    for block in [97_u64, 97 * 2000, 97 * 4000] {
        let bytes = reader.read_file(squashfs.as_ref(), nid, ByteRange::new(block * BLOCK_BYTES, 16)).expect("read");
        assert_eq!(bytes[5..13], block.to_le_bytes());
        let start = block * BLOCK_BYTES;
        assert_eq!(squashfs.seek(nid, start - 1, SeekTarget::Data).expect("searched"), Some(start));
        assert_eq!(squashfs.seek(nid, start, SeekTarget::Hole).expect("searched"), Some(start + BLOCK_BYTES));
    }
}
