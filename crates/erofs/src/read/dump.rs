//! What an image says of itself, for people: the superblock, one inode, its extents, statistics of all of it.

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
    volume::{Space, Volume},
};
use crate::format::{self, SUPER_OFFSET, SuperBlock};

/// What the superblock says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SuperblockReport {
    /// The superblock as it stands.
    pub raw: SuperBlock,
    /// Its size in bytes, with what follows it.
    pub len: u64,
    /// The features in words.
    pub features: Vec<String>,
    /// The algorithms that the image says it uses, by name.
    pub algorithms: Vec<&'static str>,
    /// The block size in bytes.
    pub block_size: u64,
    /// The number of blocks of the image itself.
    pub block_count: u64,
    /// The root.
    pub root: Nid,
    /// The packed inode, where there is one.
    pub packed: Option<Nid>,
    /// The metabox inode, where there is one.
    pub metabox: Option<Nid>,
    /// The extra devices.
    pub devices: Vec<DeviceSlot>,
}

/// What an inode says, beyond what `stat` shows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InodeReport {
    /// What `stat` shows.
    pub attr: Attr,
    /// Whether the inode is inside the metabox; `position` is then a position in that.
    pub is_in_metabox: bool,
    /// The first byte of the inode.
    pub position: u64,
    /// The size of the inode without what follows it: 32 or 64 bytes.
    pub inode_len: u64,
    /// What its xattrs take, in bytes.
    pub xattr_len: u64,
    /// The number of its data layout.
    pub layout: u16,
    /// What its data takes on the image, in bytes: its blocks, or its size where it is not compressed.
    pub stored_len: u64,
}

impl InodeReport {
    /// The report of an inode.
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

/// What the superblock of an image says.
///
/// # Errors
/// The device table cannot be read.
pub fn superblock(erofs: &Erofs) -> Result<SuperblockReport> {
    let volume = erofs.volume();
    let superblock = &volume.superblock;
    let names = (0..format::COMPRESSION_MAX).filter(|number| volume.algorithms.is_announced(*number));
    Ok(SuperblockReport {
        raw: superblock.raw,
        len: superblock.end - SUPER_OFFSET,
        features: superblock.features.words(),
        algorithms: names.map(algorithm_name).collect(),
        block_size: superblock.block_size.bytes(),
        block_count: superblock.block_count,
        root: superblock.root,
        packed: superblock.packed,
        metabox: superblock.metabox,
        devices: volume.devices.slots().to_vec(),
    })
}

/// What an inode says.
///
/// # Errors
/// It cannot be read or breaks the format.
pub fn inode(erofs: &Erofs, nid: Nid) -> Result<InodeReport> {
    let volume = erofs.volume();
    Ok(InodeReport::new(volume, &Inode::read(volume, nid)?))
}

/// The name of an algorithm.
fn algorithm_name(number: u8) -> &'static str {
    match number {
        format::COMPRESSION_LZ4 => "lz4",
        format::COMPRESSION_LZMA => "lzma",
        format::COMPRESSION_DEFLATE => "deflate",
        format::COMPRESSION_ZSTD => "zstd",
        _ => "unknown",
    }
}
