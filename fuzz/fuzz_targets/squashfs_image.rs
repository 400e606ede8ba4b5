//! SquashFS images: whatever the bytes are, opening, walking, reading and checking end in errors or answers.
#![no_main]

use std::{ops::ControlFlow, sync::Arc};

use floe_image::{BlockReader, ByteRange, DirectoryCursor, Extent, FileSystem, FileType, Nid, Result, SeekTarget};
use floe_squashfs::{Squashfs, check, dump};
use floe_testkit::DirectReader;
use libfuzzer_sys::fuzz_target;

/// So many inodes are looked at.
const INODES_MAX: usize = 64;

/// So many dirents of a directory are looked at.
const DIRENTS_MAX: usize = 64;

/// So much of each file is read.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Larger images are not worth their time.
const IMAGE_BYTES_MAX: usize = 1 << 17;

fuzz_target!(|bytes: &[u8]| {
    if bytes.len() > IMAGE_BYTES_MAX {
        return;
    }
    let reader = Arc::new(DirectReader::of(bytes));
    let Ok(squashfs) = Squashfs::open(Arc::clone(&reader) as Arc<dyn BlockReader>) else { return };
    let mut pending = vec![squashfs.root()];
    let mut visited = 0;
    while let Some(nid) = pending.pop()
        && visited < INODES_MAX
    {
        visited += 1;
        // An error is an answer.
        let _ = visit(&reader, &squashfs, nid, &mut pending);
    }
    // A check reads all metadata, which is out of proportion where much of it is claimed; the tree was small enough.
    if squashfs.superblock().inode_count <= 1024 {
        let mut blocks = 0;
        check::run(&squashfs, &mut |finding| drop(finding.to_string()), &mut |block| {
            blocks += 1;
            if blocks <= INODES_MAX {
                let decoded = reader.decoded(&block.block);
                let _ = block.judge(decoded.as_ref().map(|decoded| decoded.bytes.len()));
            }
        });
        let _ = dump::count(&squashfs).map(|statistics| statistics.to_string());
    }
    let _ = dump::describe_image(&squashfs).to_string();
});

fn visit(reader: &DirectReader, squashfs: &Squashfs, nid: Nid, pending: &mut Vec<Nid>) -> Result<()> {
    let attr = squashfs.attr(nid)?;
    for name in squashfs.xattr_names(nid)?.iter().take(DIRENTS_MAX) {
        squashfs.xattr(nid, name)?;
    }
    match attr.file_type {
        FileType::Directory => visit_directory(squashfs, nid, pending),
        FileType::Regular => visit_file(reader, squashfs, nid, attr.size),
        FileType::Symlink => squashfs.read_link(nid).map(drop),
        _ => Ok(()),
    }
}

fn visit_directory(squashfs: &Squashfs, nid: Nid, pending: &mut Vec<Nid>) -> Result<()> {
    let mut entries = Vec::new();
    let listed = squashfs.read_dir(nid, DirectoryCursor(0), &mut |dirent| {
        assert!(!dirent.name.is_empty() && !dirent.name.contains(&b'/') && !dirent.name.contains(&0));
        entries.push((dirent.name.to_vec(), dirent.nid, dirent.next));
        if entries.len() < DIRENTS_MAX { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    assert!(entries.windows(2).all(|pair| pair[0].2 < pair[1].2), "cursors ascend");
    for (name, child, cursor) in &entries {
        if let Ok(Some(found)) = squashfs.lookup(nid, name) {
            assert!(found == *child || name == b"..", "what is found is what is listed");
        }
        let _ = squashfs.read_dir(nid, *cursor, &mut |_| ControlFlow::Break(()));
        if name != b"." && name != b".." {
            pending.push(*child);
        }
    }
    listed
}

fn visit_file(reader: &DirectReader, squashfs: &Squashfs, nid: Nid, size: u64) -> Result<()> {
    for offset in [0, size / 2, size.saturating_sub(1)] {
        for target in [SeekTarget::Data, SeekTarget::Hole] {
            if let Ok(Some(found)) = squashfs.seek(nid, offset, target) {
                assert!((offset..=size).contains(&found));
            }
        }
        let mut extents: Vec<Extent> = Vec::new();
        squashfs.map(nid, ByteRange::new(offset, FILE_BYTES_MAX), &mut extents)?;
        assert!(extents.windows(2).all(|pair| pair[0].range.end() == pair[1].range.offset()), "no gaps");
        assert!(extents.last().is_none_or(|last| last.range.end() <= size));
    }
    reader.read_file(squashfs, nid, ByteRange::new(0, FILE_BYTES_MAX)).map(drop)
}
