//! An inode of the original, and its place in the virtual image.

use std::ops::ControlFlow;

use floe_erofs::{
    format::{self, InodeChunkIndex, InodeExtended, XattrIbodyHeader},
    write::{InodeData, InodeForm, InodeRecord, InodeRules, StoredName, xattr_body, xattr_entry},
};
use floe_image::{Attr, Error, FileSystem, FileType, Nid, Outline, Place, Result, Timestamp};

use crate::{
    fault::lasting,
    geometry::{BLOCK_BYTES, BLOCK_LOG2, Class, Geometry, HUGE_BYTES, LARGE_DEVICE, Slot},
};

/// The size of a rendered inode.
pub(crate) const INODE_BYTES: u64 = InodeExtended::SIZE as u64;

/// The largest regular file whose inode shares its block with others. Bytes that only look like an inode can be rendered in
/// such a block; each of them wastes at most this much of the address space.
const SHARED_FILE_BYTES_MAX: u64 = 16 << 20;

/// The smallest regular file whose data is in the large file.
pub(crate) const LARGE_FILE_BYTES_MIN: u64 = 128 << 10;

/// The longest symbolic link, as Linux reads it: `PATH_MAX`.
const LINK_BYTES_MAX: u64 = 4096;

/// The offset of the root in its slot. Its nid is 36, as in images of mkfs.erofs.
const ROOT_WITHIN: u64 = 36 * format::INODE_SLOT_SIZE;

/// The offset in its slot of an inode with unreadable extended attributes. It is the last of its block, so that the
/// attributes are in the next block, whose reads fail.
const BROKEN_XATTRS_WITHIN: u64 = BLOCK_BYTES - INODE_BYTES;

/// The size of the header before the extended attributes.
const XATTR_HEADER_BYTES: usize = XattrIbodyHeader::SIZE;

/// The maximum size of extended attributes with their header: the largest that the inode's 16-bit count can express.
const XATTR_BYTES_MAX: usize = XATTR_HEADER_BYTES + 4 * (u16::MAX as usize - 1);

/// The maximum number of bytes of values that are examined; further attributes of the inode are left out. Images of
/// other formats can state many values that do not fit, and each listing of an inode reads them again.
const XATTR_VALUES_BYTES_MAX: usize = 1 << 20;

/// The claimed length of extended attributes that cannot be read: the shortest for which the kernel reads them.
const BROKEN_XATTR_BYTES: u64 = 16;

/// The size of a record that tells the device and the address of a chunk. Its offset is a multiple of this.
pub(crate) const CHUNK_INDEX_BYTES: u64 = InodeChunkIndex::SIZE as u64;

/// The largest chunk: 2^31 blocks.
const CHUNK_LOG2_MAX: u32 = BLOCK_LOG2 as u32 + format::CHUNK_FORMAT_BLKBITS_MASK as u32;

const RULES: InodeRules =
    InodeRules { epoch: Timestamp { seconds: 0, nanoseconds: 0 }, wide: false, form: InodeForm::Extended };

/// The extended attributes of an inode.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Xattrs {
    /// Their bytes behind the inode; empty if there are none.
    Body(Vec<u8>),
    /// They break the original's format.
    Broken,
}

/// An inode of the original, and its place in the virtual image.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) nid: Nid,
    pub(crate) outline: Outline,
    pub(crate) xattrs: Xattrs,
    /// The number that identifies the inode (see [`Geometry`]).
    pub(crate) number: u64,
    pub(crate) slot: Slot,
}

/// The chunk map of a file with holes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ChunkMap {
    /// log2 of the size of a chunk.
    pub(crate) chunk_log2: u32,
    /// The number of chunks.
    pub(crate) count: u64,
    /// The offset of the map in the slot, in bytes.
    pub(crate) start: u64,
}

impl Node {
    /// Reads inode `nid`.
    ///
    /// # Errors
    /// The inode cannot be read, breaks the original's format, or cannot be rendered.
    pub(crate) fn read(file_system: &dyn FileSystem, nid: Nid, geometry: &Geometry) -> Result<Self> {
        let corrupt = |rule| Error::corrupt(rule, Place::inode(nid));
        let outline = file_system.outline(nid)?;
        let attr = &outline.attr;
        if i64::try_from(attr.size).is_err() {
            return Err(corrupt("size past what an image can have"));
        }
        if attr.file_type == FileType::Symlink && attr.size > LINK_BYTES_MAX {
            return Err(corrupt("symbolic link longer than any path"));
        }
        let number = number_of(file_system, geometry, nid, attr.inode_number)?;
        let xattrs = match outline.may_have_xattrs {
            true => read_xattrs(file_system, nid)?,
            false => Xattrs::Body(Vec::new()),
        };
        let (slot, xattrs) = match geometry.misnumbered_nid(number) {
            _ if nid == file_system.root() => (Slot { class: Class::Root, number: 0 }, xattrs),
            Some(_) => (Slot { class: Class::Misnumbered, number }, xattrs.within_block()),
            None => (Slot { class: class(&outline, &xattrs), number }, xattrs),
        };
        Ok(Self { nid, outline, xattrs, number, slot })
    }

    /// The attributes that `stat` shows.
    pub(crate) fn attr(&self) -> &Attr {
        &self.outline.attr
    }

    /// The offset of the inode in its slot, in bytes.
    pub(crate) fn within(&self) -> u64 {
        match (&self.xattrs, self.slot.class) {
            (Xattrs::Broken, _) => BROKEN_XATTRS_WITHIN,
            (Xattrs::Body(_), Class::Root) => ROOT_WITHIN,
            (Xattrs::Body(_), _) => 0,
        }
    }

    /// The offset in the slot at which the inode and its extended attributes end.
    pub(crate) fn body_end(&self) -> u64 {
        self.within() + INODE_BYTES + self.xattr_len()
    }

    /// The free bytes behind the inode and its extended attributes, in its block or its part of a shared block.
    pub(crate) fn room(&self) -> u64 {
        self.slot.class.stride().min(BLOCK_BYTES).saturating_sub(self.body_end())
    }

    /// Whether the data is in the large file.
    pub(crate) fn is_large(&self) -> bool {
        is_large(&self.outline) && self.xattrs != Xattrs::Broken
    }

    /// The chunk map of a regular file with holes.
    pub(crate) fn chunk_map(&self) -> Option<ChunkMap> {
        let alignment = self.outline.hole_alignment?.get();
        let is_sparse = self.attr().file_type == FileType::Regular && self.xattrs != Xattrs::Broken;
        let is_misnumbered = self.slot.class == Class::Misnumbered;
        let room = if is_misnumbered { self.slot.class.stride() } else { HUGE_BYTES } - self.body_end();
        is_sparse.then(|| ChunkMap::new(self.attr().size, alignment, self.body_end(), room))
    }

    /// The fields of the inode, for `size` bytes of data stored as `data`.
    pub(crate) fn record(&self, data: InodeData, size: u64) -> InodeRecord {
        let attr = self.attr();
        InodeRecord {
            file_type: attr.file_type,
            permissions: attr.permissions,
            uid: attr.uid,
            gid: attr.gid,
            link_count: attr.link_count,
            size,
            modified: attr.modified,
            number: (attr.inode_number & u64::from(u32::MAX)) as u32,
            data,
        }
    }

    /// The bytes of the inode and its extended attributes, for `size` bytes of data stored as `data`.
    pub(crate) fn to_bytes(&self, data: InodeData, size: u64) -> Vec<u8> {
        let mut bytes = self.record(data, size).to_bytes(&RULES, self.xattr_len() as usize);
        if let Xattrs::Body(body) = &self.xattrs {
            bytes.extend(body);
        }
        bytes
    }

    /// The bytes of the inode of a large file, its extended attributes, and a map with one chunk that begins with block `start`
    /// of the large file.
    pub(crate) fn large_to_bytes(&self, start: u32) -> Vec<u8> {
        let size = self.attr().size;
        let mut bytes = self.to_bytes(InodeData::Chunked { format: large_format(size) }, size);
        bytes.resize(bytes.len().next_multiple_of(CHUNK_INDEX_BYTES as usize), 0);
        bytes.extend(large_chunk(start));
        bytes
    }

    fn xattr_len(&self) -> u64 {
        match &self.xattrs {
            Xattrs::Body(body) => body.len() as u64,
            Xattrs::Broken => BROKEN_XATTR_BYTES,
        }
    }
}

impl Xattrs {
    /// The attributes of an inode with one block for itself and for them. Larger ones count as broken.
    fn within_block(self) -> Self {
        match self {
            Self::Body(body) if INODE_BYTES + body.len() as u64 > BLOCK_BYTES => Self::Broken,
            xattrs => xattrs,
        }
    }
}

/// The number that identifies inode `nid`, which states `inode_number` (see [`Geometry`]).
///
/// # Errors
/// The original cannot be read now, or the inode has no place in the virtual image.
pub(crate) fn number_of(file_system: &dyn FileSystem, geometry: &Geometry, nid: Nid, inode_number: u64) -> Result<u64> {
    let misnumbered = geometry.misnumbered(nid);
    let is_found = match (misnumbered, nid == file_system.root()) {
        // It has a place of its own, so its number matters only for comparisons. Without a table of inodes, finding it would
        // read all inodes.
        (misnumbered, true) => misnumbered.is_none(),
        (_, false) => lasting(file_system.find_number(inode_number))?.flatten() == Some(nid),
    };
    let number = if is_found { Some(inode_number).filter(|number| *number <= geometry.number_max()) } else { None };
    number.or(misnumbered).ok_or(Error::corrupt("inode number names another inode", Place::inode(nid)))
}

/// The chunk format of a large file: one chunk, whose record names the device.
pub(crate) fn large_format(size: u64) -> u16 {
    let chunk_log2 = size.checked_next_power_of_two().map_or(CHUNK_LOG2_MAX, |len| len.ilog2().min(CHUNK_LOG2_MAX));
    format::CHUNK_FORMAT_INDEXES | (chunk_log2 - u32::from(BLOCK_LOG2)) as u16
}

/// The record of the chunk of a large file, at a multiple of [`CHUNK_INDEX_BYTES`].
pub(crate) fn large_chunk(start: u32) -> [u8; InodeChunkIndex::SIZE] {
    InodeChunkIndex { startblk_hi: 0, device_id: LARGE_DEVICE, startblk_lo: start }.to_bytes()
}

/// The bytes of a placeholder for an inode that cannot be read, with permissions 0.
pub(crate) fn broken_inode(file_type: FileType, data: InodeData, size: u64) -> Vec<u8> {
    let record = InodeRecord {
        file_type,
        permissions: 0,
        uid: 0,
        gid: 0,
        link_count: if file_type == FileType::Directory { 2 } else { 1 },
        size,
        modified: Timestamp::default(),
        number: 0,
        data,
    };
    record.to_bytes(&RULES, 0)
}

impl ChunkMap {
    /// The map of a file of `size` bytes whose holes are aligned to `alignment`, at `start` in a slot, in at most `room` bytes.
    /// If that is too little, the chunks are larger, and holes smaller than a chunk become data.
    fn new(size: u64, alignment: u64, start: u64, room: u64) -> Self {
        let mut chunk_log2 = alignment.ilog2().clamp(u32::from(BLOCK_LOG2), CHUNK_LOG2_MAX);
        while size.div_ceil(1 << chunk_log2) > room / format::BLOCK_MAP_ENTRY_SIZE && chunk_log2 < CHUNK_LOG2_MAX {
            chunk_log2 += 1;
        }
        Self { chunk_log2, count: size.div_ceil(1 << chunk_log2), start }
    }

    /// The offset in the slot at which the map ends.
    pub(crate) fn end(&self) -> u64 {
        self.start + self.count * format::BLOCK_MAP_ENTRY_SIZE
    }

    /// The chunk format for the inode.
    pub(crate) fn format(&self) -> u16 {
        (self.chunk_log2 - u32::from(BLOCK_LOG2)) as u16
    }

    /// The chunks whose entries are in block `block` of the slot.
    pub(crate) fn chunks_of_block(&self, block: u64) -> std::ops::Range<u64> {
        let index = |byte: u64| (byte.max(self.start) - self.start) / format::BLOCK_MAP_ENTRY_SIZE;
        index(block * BLOCK_BYTES).min(self.count)..index((block + 1) * BLOCK_BYTES).min(self.count)
    }
}

fn is_large(outline: &Outline) -> bool {
    let attr = &outline.attr;
    attr.file_type == FileType::Regular && outline.hole_alignment.is_none() && attr.size >= LARGE_FILE_BYTES_MIN
}

fn class(outline: &Outline, xattrs: &Xattrs) -> Class {
    let Xattrs::Body(body) = xattrs else { return Class::Huge };
    let (attr, mut len) = (&outline.attr, INODE_BYTES + body.len() as u64);
    if is_large(outline) {
        len = len.next_multiple_of(CHUNK_INDEX_BYTES) + CHUNK_INDEX_BYTES;
    }
    let own_block = if len <= BLOCK_BYTES { Class::Page } else { Class::Huge };
    let shared_block = match len {
        0..=64 => Class::Dense,
        65..=256 => Class::Medium,
        _ => own_block,
    };
    match attr.file_type {
        FileType::Directory => own_block,
        FileType::Symlink if len + attr.size <= Class::Medium.stride() => Class::Medium,
        FileType::Symlink => own_block,
        FileType::Regular => match outline.hole_alignment {
            Some(alignment) => {
                let map = ChunkMap::new(attr.size, alignment.get(), len, HUGE_BYTES - len);
                if map.end() <= BLOCK_BYTES { Class::Page } else { Class::Huge }
            }
            None if attr.size > SHARED_FILE_BYTES_MAX => own_block,
            None => shared_block,
        },
        _ => shared_block,
    }
}

fn read_xattrs(file_system: &dyn FileSystem, nid: Nid) -> Result<Xattrs> {
    let (mut entries, mut value_bytes) = (Vec::new(), 0);
    let read = file_system.xattrs(nid, &mut |xattr| {
        // Other formats have longer values. An attribute that does not fit is left out.
        let entry = StoredName::new(xattr.name, &[]).and_then(|name| xattr_entry(name, xattr.value));
        let room = XATTR_BYTES_MAX - XATTR_HEADER_BYTES - entries.len();
        entries.extend(entry.filter(|entry| entry.len() <= room).unwrap_or_default());
        value_bytes += xattr.value.len();
        if value_bytes < XATTR_VALUES_BYTES_MAX { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    Ok(match lasting(read)? {
        Some(()) if entries.is_empty() => Xattrs::Body(entries),
        Some(()) => Xattrs::Body(xattr_body(None, &[], &entries)),
        None => Xattrs::Broken,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunk_maps_fit_their_room() {
        for (size, alignment, room, expected) in [
            (1, 4096, 4000, (12, 1)),
            (1 << 20, 65536, 4000, (16, 16)),
            (1 << 20, 512, 4000, (12, 256)),
            (1 << 30, 65536, 4000, (21, 512)),
            (i64::MAX as u64, 1 << 62, 8 << 20, (43, 1 << 20)),
            (i64::MAX as u64, 4096, 8 << 20, (42, 1 << 21)),
        ] {
            let map = ChunkMap::new(size, alignment, 64, room);
            assert_eq!((map.chunk_log2, map.count), expected, "{size} {alignment} {room}");
        }
        let map = ChunkMap { chunk_log2: 12, count: 3000, start: 80 };
        assert_eq!((map.chunks_of_block(0), map.chunks_of_block(1)), (0..1004, 1004..2028));
        assert_eq!((map.chunks_of_block(2), map.chunks_of_block(3)), (2028..3000, 3000..3000));
        let map = ChunkMap { chunk_log2: 12, count: 5, start: 4096 };
        assert_eq!((map.chunks_of_block(0), map.chunks_of_block(1)), (0..0, 0..5));
    }
}
