//! The form of a file's inode in a kept image.

use floe_erofs::{
    format::BLOCK_MAP_ENTRY_SIZE,
    write::{InodeData, InodeRules},
};

use super::{compressed::CompressedFile, image_file::PlainFile};
use crate::{
    geometry::BLOCK_BYTES,
    node::{CHUNK_INDEX_BYTES, ChunkMap, Node, large_format},
};

/// The data of a file that is not a directory.
pub(super) enum EntryData {
    /// A device number; 0 for fifos and sockets.
    Device(u32),
    /// One run on the device of small files.
    Small,
    /// One run on the device of large files.
    Large,
    /// Runs of chunks on the device of small files.
    Chunks(ChunkMap),
    /// Blocks of the original, and a copy of what follows them.
    Plain(PlainFile),
    /// Compressed blocks of the original.
    Compressed(CompressedFile),
    /// The target of a symbolic link.
    Target(Vec<u8>),
}

/// The form of a file's inode: the inode, its extended attributes, and data behind them.
pub(super) struct Entry {
    pub(super) data: EntryData,
    pub(super) xattrs: Vec<u8>,
    /// The length of the inode with its attributes.
    pub(super) body_len: u64,
    /// The offset of the data behind them.
    pub(super) tail_start: u64,
    /// The length of all.
    pub(super) len: u64,
    /// How many bytes must be in one block, from the first on.
    pub(super) unit: u64,
}

impl Entry {
    pub(super) fn new(node: &Node, data: EntryData, xattrs: Vec<u8>, rules: &InodeRules) -> Self {
        let size = node.attr().size;
        let inode_len = node.record(data.form(size), size).len(rules);
        let body_len = inode_len + xattrs.len() as u64;
        let (tail_start, tail_len) = match &data {
            EntryData::Device(_) | EntryData::Small => (body_len, 0),
            EntryData::Plain(plain) => (body_len, plain.tail.len() as u64),
            EntryData::Compressed(file) => {
                let start = CompressedFile::map_start(body_len);
                (start, file.map_bytes(start).len() as u64)
            }
            EntryData::Large => (body_len.next_multiple_of(CHUNK_INDEX_BYTES), CHUNK_INDEX_BYTES),
            EntryData::Chunks(map) => (body_len, map.count * BLOCK_MAP_ENTRY_SIZE),
            EntryData::Target(target) if body_len + target.len() as u64 <= BLOCK_BYTES => {
                (body_len, target.len() as u64)
            }
            EntryData::Target(_) => (body_len, 0),
        };
        let len = tail_start + tail_len;
        let unit = if len <= BLOCK_BYTES { len } else { inode_len };
        Self { data, xattrs, body_len, tail_start, len, unit }
    }

    /// Whether the target of a symbolic link is behind the inode.
    pub(super) fn is_inline(&self) -> bool {
        self.len > self.body_len
    }
}

impl EntryData {
    /// The data as the inode states it, without its addresses.
    pub(super) fn form(&self, size: u64) -> InodeData {
        match self {
            Self::Device(number) => InodeData::Device(*number),
            Self::Large => InodeData::Chunked { format: large_format(size) },
            Self::Chunks(map) => InodeData::Chunked { format: map.format() },
            Self::Compressed(file) => file.form(size),
            Self::Small | Self::Plain(_) | Self::Target(_) => InodeData::Flat { start_block: None, inline: false },
        }
    }
}
