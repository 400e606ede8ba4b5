//! Reports about an image: superblock, inodes, extents and statistics.

mod extents;
mod statistics;

pub use self::{
    extents::{ExtentPlace, ExtentReport, extents},
    statistics::{Histogram, Statistics},
};

use std::{collections::HashSet, ops::ControlFlow};

use floe_image::{Attr, DirectoryCursor, Error, FileSystem, FileType, Nid, Place, Result};

use super::{
    Erofs,
    device_table::DeviceSlot,
    inode::{Inode, Layout},
    parameters::Space,
    volume::Volume,
};
use crate::{
    algorithm::Algorithm,
    format::{self, SUPER_OFFSET, SuperBlock},
};

/// The contents of the superblock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SuperblockReport {
    /// The raw superblock.
    pub raw: SuperBlock,
    /// Its size in bytes, including extensions.
    pub len: u64,
    /// The names of the features.
    pub features: Vec<String>,
    /// The names of the algorithms that the superblock announces.
    pub algorithms: Vec<&'static str>,
    /// The block size in bytes.
    pub block_size: u64,
    /// The number of blocks of the image itself.
    pub block_count: u64,
    /// The nid of the root.
    pub root: Nid,
    /// The packed inode, if any.
    pub packed: Option<Nid>,
    /// The metabox inode, if any.
    pub metabox: Option<Nid>,
    /// The extra devices.
    pub devices: Vec<DeviceSlot>,
}

/// The contents of an inode, beyond `stat`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InodeReport {
    /// The attributes.
    pub attr: Attr,
    /// Whether the inode is inside the metabox; `position` is then relative to the metabox.
    pub is_in_metabox: bool,
    /// The position of the inode.
    pub position: u64,
    /// The size of the inode itself: 32 or 64 bytes.
    pub inode_len: u64,
    /// The length of its xattrs in bytes.
    pub xattr_len: u64,
    /// The number of its data layout.
    pub layout: u16,
    /// The space that its data takes in the image, in bytes: its blocks, or its size if it is uncompressed.
    pub stored_len: u64,
}

impl InodeReport {
    /// Describes an inode.
    fn new(volume: &Volume, inode: &Inode) -> Self {
        let (layout, stored_len) = match inode.layout {
            Layout::Flat { .. } => (format::INODE_FLAT_PLAIN, inode.size),
            Layout::FlatInline { .. } => (format::INODE_FLAT_INLINE, inode.size),
            Layout::Chunked(_) => (format::INODE_CHUNK_BASED, inode.size),
            Layout::Compressed { is_compact: true } => (format::INODE_COMPRESSED_COMPACT, inode.blocks_512 * 512),
            Layout::Compressed { is_compact: false } => (format::INODE_COMPRESSED_FULL, inode.blocks_512 * 512),
        };
        Self {
            attr: inode.attr(volume),
            is_in_metabox: inode.space == Space::Metabox,
            position: inode.position,
            inode_len: inode.xattr_position - inode.position,
            xattr_len: inode.xattr_len,
            layout,
            stored_len,
        }
    }

    /// Whether the data is compressed, at least in part.
    pub fn is_compressed(&self) -> bool {
        matches!(self.layout, format::INODE_COMPRESSED_FULL | format::INODE_COMPRESSED_COMPACT)
    }
}

/// Describes the superblock of an image.
///
/// # Errors
/// The device table cannot be read.
pub fn superblock(erofs: &Erofs) -> Result<SuperblockReport> {
    let volume = erofs.volume();
    let superblock = &volume.superblock;
    Ok(SuperblockReport {
        raw: superblock.raw,
        len: superblock.end - SUPER_OFFSET,
        features: superblock.features.words(),
        algorithms: volume.algorithms.announced().map(|algorithm| algorithm.name).collect(),
        block_size: superblock.block_size.bytes(),
        block_count: superblock.block_count,
        root: superblock.root,
        packed: superblock.packed,
        metabox: superblock.metabox,
        devices: volume.devices.slots().to_vec(),
    })
}

/// Describes an inode.
///
/// # Errors
/// The inode cannot be read or breaks the format.
pub fn inode(erofs: &Erofs, nid: Nid) -> Result<InodeReport> {
    let volume = erofs.volume();
    Ok(InodeReport::new(volume, &Inode::read(volume, nid)?))
}

/// The name of an algorithm.
fn algorithm_name(number: u8) -> &'static str {
    Algorithm::of(number).map_or("unknown", |algorithm| algorithm.name)
}

/// An inode with one of its paths.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry<'a> {
    /// The path, starting with `/`.
    pub path: &'a [u8],
    /// The inode.
    pub report: InodeReport,
}

/// A path that cannot be read.
#[derive(Clone, Debug)]
pub struct Unreadable<'a> {
    /// The path, starting with `/`.
    pub path: &'a [u8],
    /// The reason.
    pub error: Error,
}

/// A directory on the way from the root to the current entry. Only the current entry has a whole path: in deep trees, the
/// paths of all pending entries would take memory without bound.
struct Level {
    /// The length of its path, without a slash at the end.
    path_len: usize,
    /// The entries that were not visited yet, the next one last.
    pending: Vec<(Box<[u8]>, Nid)>,
}

/// Visits all paths, each directory before its entries, until `visit` breaks. Reports unreadable paths and skips them;
/// does not enter a directory twice. If directories share their content, the walk ends after as many entries as the
/// image has room for.
pub fn entries(erofs: &Erofs, visit: &mut dyn FnMut(Result<Entry<'_>, Unreadable<'_>>) -> ControlFlow<()>) {
    let mut entered = HashSet::new();
    let mut left = erofs.entry_count_max();
    let mut path = Vec::new();
    let mut levels: Vec<Level> = Vec::new();
    let mut next = Some(erofs.root());
    while let Some(nid) = next {
        let path_of_entry: &[u8] = if path.is_empty() { b"/" } else { &path };
        let unreadable = |error| Err(Unreadable { path: path_of_entry, error });
        let flow = match inode(erofs, nid) {
            Err(error) => visit(unreadable(error)),
            Ok(report) => {
                if report.attr.file_type == FileType::Directory && entered.insert(nid) {
                    let listing = Listing::read(erofs, nid, &mut left);
                    levels.push(Level { path_len: path.len(), pending: listing.pending });
                    if let Some(error) = listing.fault
                        && (visit(unreadable(error)).is_break() || listing.is_over)
                    {
                        return;
                    }
                }
                visit(Ok(Entry { path: path_of_entry, report }))
            }
        };
        if flow.is_break() {
            return;
        }
        next = step(&mut levels, &mut path);
    }
}

/// The entries of a directory, as far as they can be read.
struct Listing {
    /// The first entry is the last.
    pending: Vec<(Box<[u8]>, Nid)>,
    fault: Option<Error>,
    /// Whether the image has no room for more entries.
    is_over: bool,
}

impl Listing {
    /// Reads a directory; each entry takes one off `left`.
    fn read(erofs: &Erofs, nid: Nid, left: &mut u64) -> Self {
        let (mut pending, mut is_over) = (Vec::new(), false);
        let read = erofs.read_dir(nid, DirectoryCursor::default(), &mut |dirent| {
            let Some(fewer) = left.checked_sub(1) else {
                is_over = true;
                return ControlFlow::Break(());
            };
            *left = fewer;
            if !matches!(dirent.name, b"." | b"..") {
                pending.push((Box::from(dirent.name), dirent.nid));
            }
            ControlFlow::Continue(())
        });
        pending.reverse();
        let rule = "directories share their content: more entries than the image has room for";
        let fault = if is_over { Some(Error::corrupt(rule, Place::inode(nid))) } else { read.err() };
        Self { pending, fault, is_over }
    }
}

/// Makes `path` the path of the next entry, and returns its inode.
fn step(levels: &mut Vec<Level>, path: &mut Vec<u8>) -> Option<Nid> {
    loop {
        let level = levels.last_mut()?;
        path.truncate(level.path_len);
        if let Some((name, nid)) = level.pending.pop() {
            path.push(b'/');
            path.extend_from_slice(&name);
            return Some(nid);
        }
        levels.pop();
    }
}

/// The first path of an inode, if it has one.
pub fn path_of(erofs: &Erofs, nid: Nid) -> Option<Vec<u8>> {
    let mut found = None;
    entries(erofs, &mut |entry| match entry {
        Ok(entry) if entry.report.attr.nid == nid => {
            found = Some(entry.path.to_vec());
            ControlFlow::Break(())
        }
        _ => ControlFlow::Continue(()),
    });
    found
}
