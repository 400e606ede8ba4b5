//! Reports about an image: superblock, inodes, extents and statistics.

mod extents;
mod statistics;
mod tree;

use floe_image::{Attr, Nid, Result};

pub use self::{
    extents::{ExtentPlace, ExtentReport, extents},
    statistics::{Histogram, Statistics},
    tree::{Entry, Unreadable, entries, path_of},
};
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
