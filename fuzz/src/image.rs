//! Walks and reads images of arbitrary bytes.

use std::ops::ControlFlow;

use floe_image::{ByteRange, DirectoryCursor, Extent, FileSystem, FileType, Nid, Result, SeekTarget};
use floe_testkit::DirectReader;

/// Larger images are skipped.
pub const IMAGE_BYTES_MAX: usize = 1 << 17;

/// The maximum number of inodes explored.
pub const INODES_MAX: usize = 64;

/// The maximum number of dirents explored per directory.
const DIRENTS_MAX: usize = 64;

/// The maximum number of extents per file that are looked up again.
const EXTENTS_MAX: usize = 8;

/// The maximum number of bytes read of each file.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Walks an image from its root and reads what it finds, within limits. Errors are valid results; contradictions panic.
pub fn walk(reader: &DirectReader, file_system: &dyn FileSystem) {
    let mut pending = vec![file_system.root()];
    let mut visited = 0;
    while let Some(nid) = pending.pop()
        && visited < INODES_MAX
    {
        visited += 1;
        let _ = visit(reader, file_system, nid, &mut pending);
    }
}

fn visit(reader: &DirectReader, file_system: &dyn FileSystem, nid: Nid, pending: &mut Vec<Nid>) -> Result<()> {
    let attr = file_system.attr(nid)?;
    for name in file_system.xattr_names(nid)?.iter().take(DIRENTS_MAX) {
        file_system.xattr(nid, name)?;
    }
    match attr.file_type {
        FileType::Directory => visit_directory(file_system, nid, pending),
        FileType::Regular => visit_file(reader, file_system, nid, attr.size),
        FileType::Symlink => file_system.read_link(nid).map(drop),
        _ => Ok(()),
    }
}

fn visit_directory(file_system: &dyn FileSystem, nid: Nid, pending: &mut Vec<Nid>) -> Result<()> {
    let mut entries = Vec::new();
    let listed = file_system.read_dir(nid, DirectoryCursor(0), &mut |dirent| {
        assert!(!dirent.name.is_empty() && !dirent.name.contains(&b'/') && !dirent.name.contains(&0));
        entries.push((dirent.name.to_vec(), dirent.nid, dirent.next));
        if entries.len() < DIRENTS_MAX { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    assert!(entries.windows(2).all(|pair| pair[0].2 < pair[1].2), "cursors ascend");
    // A lookup among unsorted or duplicate names may find another entry.
    let is_sorted =
        listed.is_ok() && entries.len() < DIRENTS_MAX && entries.windows(2).all(|pair| pair[0].0 < pair[1].0);
    for (name, child, cursor) in &entries {
        let found = file_system.lookup(nid, name);
        if is_sorted && let Ok(Some(found)) = found {
            assert!(found == *child || name == b"..", "a lookup finds the listed entry");
        }
        let _ = file_system.read_dir(nid, *cursor, &mut |_| ControlFlow::Break(()));
        if name != b"." && name != b".." {
            pending.push(*child);
        }
    }
    listed
}

fn visit_file(reader: &DirectReader, file_system: &dyn FileSystem, nid: Nid, size: u64) -> Result<()> {
    map_file(file_system, nid, size)?;
    reader.read_file(file_system, nid, ByteRange::new(0, FILE_BYTES_MAX)).map(drop)
}

/// Maps a file from several offsets on, and searches it for data and holes.
///
/// # Panics
/// The extents have gaps, exceed the end of the file, or do not contain the requested offset.
pub fn map_file(file_system: &dyn FileSystem, nid: Nid, size: u64) -> Result<()> {
    for offset in [0, size / 2, size.saturating_sub(1)] {
        for target in [SeekTarget::Data, SeekTarget::Hole] {
            if let Ok(Some(found)) = file_system.seek(nid, offset, target) {
                assert!((offset..=size).contains(&found));
            }
        }
        let mut extents: Vec<Extent> = Vec::new();
        file_system.map(nid, ByteRange::new(offset, FILE_BYTES_MAX), &mut extents)?;
        assert!(extents.windows(2).all(|pair| pair[0].range.end() == pair[1].range.offset()), "no gaps");
        assert!(extents.last().is_none_or(|last| last.range.end() <= size));
        for extent in extents.iter().step_by(extents.len() / EXTENTS_MAX + 1) {
            let end = ByteRange::new(extent.range.end() - 1, 1);
            let mut found: Vec<Extent> = Vec::new();
            file_system.map(nid, end, &mut found)?;
            assert!(found.first().is_some_and(|found| found.range.contains(end)), "{found:?} is not at {end:?}");
        }
    }
    Ok(())
}
