//! Reads everything in an image, within limits.

use std::ops::ControlFlow;

use floe_image::{ByteRange, DirectoryCursor, Error, FileSystem, FileType, Nid, Place, Result, SeekTarget};
use floe_squashfs::Squashfs;

use crate::memo_reader::MemoReader;

/// The maximum depth of a corrupt tree that is explored.
const DEPTH_MAX: usize = 20;

/// The maximum number of bytes read of each file.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// The maximum number of inodes explored.
const INODES_MAX: usize = 10_000;

/// The only fault of an image whose directory index is wrong in a way that lookups cannot detect.
#[allow(dead_code, reason = "each test uses a part of it")]
pub(crate) const LISTED_AND_NOT_FOUND: &str = "name that is listed and not found";

/// Reads the whole tree; returns the errors in order.
pub(crate) fn errors(reader: &MemoReader, squashfs: &Squashfs) -> Vec<String> {
    let mut errors = Vec::new();
    let mut pending = vec![(squashfs.root(), 0)];
    let mut visited = 0;
    while let Some((nid, depth)) = pending.pop() {
        visited += 1;
        if visited > INODES_MAX {
            break;
        }
        if let Err(error) = visit(reader, squashfs, nid, depth, &mut pending) {
            errors.push(error.to_string());
        }
    }
    errors
}

fn visit(
    reader: &MemoReader,
    squashfs: &Squashfs,
    nid: Nid,
    depth: usize,
    pending: &mut Vec<(Nid, usize)>,
) -> Result<()> {
    let attr = squashfs.attr(nid)?;
    for name in squashfs.xattr_names(nid)? {
        squashfs.xattr(nid, &name)?;
    }
    match attr.file_type {
        FileType::Directory => {
            let mut names = Vec::new();
            let listed = squashfs.read_dir(nid, DirectoryCursor(0), &mut |dirent| {
                assert!(!dirent.name.is_empty() && !dirent.name.contains(&b'/') && !dirent.name.contains(&0));
                if dirent.name != b"." && dirent.name != b".." {
                    names.push(dirent.name.to_vec());
                    if depth < DEPTH_MAX {
                        pending.push((dirent.nid, depth + 1));
                    }
                }
                ControlFlow::Continue(())
            });
            listed?;
            for name in names.iter().take(100) {
                if squashfs.lookup(nid, name)?.is_none() {
                    return Err(Error::corrupt(LISTED_AND_NOT_FOUND, Place::inode(nid)));
                }
            }
            squashfs.lookup(nid, b"..")?;
        }
        FileType::Regular => {
            let size = attr.size.min(FILE_BYTES_MAX);
            let mut position = 0;
            while position < size {
                let range = ByteRange::new(position, (1 << 20).min(size - position));
                position += reader.read_file(squashfs, nid, range)?.len() as u64;
            }
            for offset in [0, attr.size / 2, attr.size.saturating_sub(1)] {
                squashfs.seek(nid, offset, SeekTarget::Data)?;
                squashfs.seek(nid, offset, SeekTarget::Hole)?;
                squashfs.map(nid, ByteRange::new(offset, 1), &mut Vec::new())?;
            }
        }
        FileType::Symlink => drop(squashfs.read_link(nid)?),
        _ => {}
    }
    Ok(())
}
