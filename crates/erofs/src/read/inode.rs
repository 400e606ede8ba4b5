//! Inodes (docs/format/erofs.md, Inodes).

use std::num::NonZero;

use floe_image::{Attr, DeviceNumber, Error, FileType, Nid, Outline, Place, Result, Timestamp};

use super::{
    parameters::{Parameters, Space},
    superblock::nanoseconds,
    window::{Metadata, Window},
};
use crate::format::{self, DIRENT_NID_MASK, DIRENT_NID_METABOX_BIT, INODE_SLOT_SIZE, InodeCompact, InodeExtended};

/// A validated inode.
#[derive(Clone, Debug)]
pub(super) struct Inode {
    pub(super) nid: Nid,
    /// The space that contains the inode and its body.
    pub(super) space: Space,
    /// The position of the inode.
    pub(super) position: u64,
    /// The position of the xattrs, which follow the inode.
    pub(super) xattr_position: u64,
    /// The length of the xattrs in bytes; 0 if there are none.
    pub(super) xattr_len: u64,
    pub(super) file_type: FileType,
    pub(super) permissions: u16,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) link_count: u32,
    pub(super) size: u64,
    pub(super) modified: Timestamp,
    pub(super) device: DeviceNumber,
    pub(super) blocks_512: u64,
    pub(super) layout: Layout,
    /// The directory has no `.` entry.
    pub(super) omits_dot: bool,
}

/// The data layout of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Layout {
    /// Contiguous blocks from a block on; `None` if the whole file is a hole.
    Flat { start_block: Option<u64> },
    /// As above, but the tail after the last full block follows the inode.
    FlatInline { start_block: u64 },
    /// Compressed, with a compact index if `is_compact`, otherwise with a full index or encoded extents.
    Compressed { is_compact: bool },
    /// Chunks.
    Chunked(ChunkFormat),
}

/// The format of a chunk map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ChunkFormat {
    /// log2 of the chunk size in bytes; below 64.
    pub(super) chunk_size_log2: u8,
    /// The map consists of 8-byte records.
    pub(super) has_indexes: bool,
    /// Block numbers have 48 bits.
    pub(super) is_48bit: bool,
}

impl Inode {
    /// Reads inode `nid`.
    ///
    /// # Errors
    /// The inode does not exist, cannot be read, or breaks the format.
    pub(super) fn read(metadata: &dyn Metadata, nid: Nid) -> Result<Self> {
        let corrupt = |rule| Error::corrupt(rule, Place::inode(nid));
        let parameters = metadata.parameters();
        let (space, position) = location(parameters, nid);
        let position = position.ok_or(corrupt("inode number past the address space"))?;
        let mut window = Window::new(metadata, space, nid);
        let compact: [u8; InodeCompact::SIZE] = window.array(position)?;
        let compact = InodeCompact::from_prefix(&compact).ok_or(corrupt("inode is short"))?;
        let raw = match compact.i_format & format::I_VERSION_MASK {
            0 => RawInode::of_compact(&compact, parameters),
            _ => {
                let extended: [u8; InodeExtended::SIZE] = window.array(position)?;
                RawInode::of_extended(&InodeExtended::from_prefix(&extended).ok_or(corrupt("inode is short"))?)
            }
        };
        Self::from_raw(parameters, nid, space, position, &raw)
    }

    fn from_raw(parameters: &Parameters, nid: Nid, space: Space, position: u64, raw: &RawInode) -> Result<Self> {
        let corrupt = |rule| Error::corrupt(rule, Place::inode_at(nid, position));
        if raw.format & !format::I_ALL != 0 {
            return Err(Error::unsupported(format!("EROFS inode format {:#x} (inode {nid})", raw.format)));
        }
        let file_type = FileType::from_mode(raw.mode).ok_or(corrupt("inode has no file type"))?;
        if i64::try_from(raw.size).is_err() {
            return Err(corrupt("inode has a negative size"));
        }
        let layout = raw.layout(parameters, nid, position)?;
        let block_size = parameters.superblock.block_size;
        let blocks_512 = match layout {
            Layout::Compressed { .. } => u64::from(raw.u) << (block_size.log2() - 9),
            _ => block_size.blocks(raw.size) << (block_size.log2() - 9),
        };
        let device = match file_type {
            FileType::CharacterDevice | FileType::BlockDevice => DeviceNumber::from_encoded(raw.u),
            _ => DeviceNumber::default(),
        };
        let xattr_position = position.checked_add(raw.header_len).ok_or(corrupt("inode past the address space"))?;
        let xattr_len = match raw.xattr_count {
            0 => 0,
            count => 12 + (u64::from(count) - 1) * 4,
        };
        xattr_position.checked_add(xattr_len).ok_or(corrupt("inode past the address space"))?;
        Ok(Self {
            nid,
            space,
            position,
            xattr_position,
            xattr_len,
            file_type,
            permissions: raw.mode & 0o7777,
            uid: raw.uid,
            gid: raw.gid,
            link_count: raw.link_count,
            size: raw.size,
            modified: raw.modified,
            device,
            blocks_512,
            layout,
            omits_dot: file_type == FileType::Directory && raw.format & format::I_DOT_OMITTED != 0,
        })
    }

    /// Whether an inode of this type has content: data, entries, or a link target.
    pub(super) fn has_content(&self) -> bool {
        matches!(self.file_type, FileType::Regular | FileType::Directory | FileType::Symlink)
    }

    /// The position after the inode and its xattrs.
    pub(super) fn body_end(&self) -> u64 {
        self.xattr_position + self.xattr_len
    }

    /// The properties of the inode that need neither its data nor its xattrs.
    pub(super) fn outline(&self, parameters: &Parameters) -> Outline {
        let hole_alignment = match self.layout {
            Layout::Chunked(format) => Some(1u64.checked_shl(format.chunk_size_log2.into()).unwrap_or(1 << 63)),
            Layout::Flat { start_block: None } => Some(self.size.checked_next_power_of_two().unwrap_or(1 << 63)),
            Layout::Flat { .. } | Layout::FlatInline { .. } | Layout::Compressed { .. } => None,
        };
        let has_holes = self.file_type == FileType::Regular && self.size != 0;
        let is_in_blocks = self.file_type == FileType::Directory && !self.omits_dot;
        Outline {
            attr: self.attr(parameters),
            may_have_xattrs: self.xattr_len != 0,
            hole_alignment: hole_alignment.filter(|_| has_holes).and_then(NonZero::new),
            directory_block: NonZero::new(parameters.superblock.block_size.bytes()).filter(|_| is_in_blocks),
        }
    }

    /// The attributes, as `stat` reports them.
    pub(super) fn attr(&self, parameters: &Parameters) -> Attr {
        Attr {
            nid: self.nid,
            inode_number: inode_number(parameters, self.nid),
            file_type: self.file_type,
            permissions: self.permissions,
            uid: self.uid,
            gid: self.gid,
            size: self.size,
            link_count: self.link_count,
            modified: self.modified,
            device: self.device,
            blocks_512: self.blocks_512,
        }
    }
}

/// The space that contains an inode, and its position there; `None` if that is past the address space.
fn location(parameters: &Parameters, nid: Nid) -> (Space, Option<u64>) {
    let space = if nid.0 >> DIRENT_NID_METABOX_BIT == 0 { Space::Image } else { Space::Metabox };
    let area = if space == Space::Image { parameters.superblock.metadata_position } else { 0 };
    (space, (nid.0 & DIRENT_NID_MASK).checked_mul(INODE_SLOT_SIZE).and_then(|past| area.checked_add(past)))
}

/// Finds the inode numbers, among the 64 from `first` on, whose slots begin with plausible inode fields. Returns a bit
/// set; the lowest bit stands for `first`. Slots that hold extended attributes, indexes or file tails mostly fail this
/// test.
///
/// # Errors
/// Reading the metadata failed for a transient reason.
pub(super) fn possible_numbers(metadata: &dyn Metadata, first: u64) -> Result<u64> {
    let parameters = metadata.parameters();
    let mut possible = 0;
    let mut window = Window::new(metadata, Space::Image, nid_of(parameters, first));
    for item in 0..u64::BITS {
        let nid = nid_of(parameters, first.saturating_add(item.into()));
        let (space, Some(position)) = location(parameters, nid) else { continue };
        if space != window.space() {
            window = Window::new(metadata, space, nid);
        }
        let is_possible = match window.array::<{ InodeCompact::SIZE }>(position) {
            Ok(bytes) => InodeCompact::from_prefix(&bytes).is_some_and(|inode| is_plausible_inode(&inode)),
            Err(error) if error.is_transient() => return Err(error),
            // Reading the inode itself returns the error.
            Err(_) => true,
        };
        possible |= u64::from(is_possible) << item;
    }
    Ok(possible)
}

/// Whether these fields have a known inode format and file type. They are the same in compact and extended inodes.
fn is_plausible_inode(inode: &InodeCompact) -> bool {
    inode.i_format & !format::I_ALL == 0 && FileType::from_mode(inode.i_mode).is_some()
}

/// The inode with this inode number; the inverse of [`inode_number`].
pub(super) fn nid_of(parameters: &Parameters, inode_number: u64) -> Nid {
    Nid(match parameters.superblock.metabox {
        None => inode_number,
        Some(_) => metabox_nid(inode_number),
    })
}

/// The largest number that `stat` can show: that of an inode in the last bytes of the image, or of the metabox.
pub(super) fn inode_number_max(parameters: &Parameters) -> u64 {
    let superblock = &parameters.superblock;
    let in_image = parameters.space_len(Space::Image).saturating_sub(superblock.metadata_position) / INODE_SLOT_SIZE;
    let in_metabox = parameters.space_len(Space::Metabox) / INODE_SLOT_SIZE;
    let number = |nid| inode_number(parameters, Nid(nid));
    number(in_image).max(number(in_metabox | superblock.metabox.map_or(0, |_| 1 << DIRENT_NID_METABOX_BIT)))
}

/// The inode number that `stat` shows (docs/format/erofs.md, Inode numbers).
pub(super) fn inode_number(parameters: &Parameters, nid: Nid) -> u64 {
    match parameters.superblock.metabox {
        None => nid.0,
        Some(_) => metabox_inode_number(nid.0),
    }
}

/// The upper 32 bits of an inode number.
const UPPER_HALF: u64 = !0 << 32;

fn metabox_inode_number(nid: u64) -> u64 {
    (nid << 1) & UPPER_HALF | nid & 0x7fff_ffff | (nid >> DIRENT_NID_METABOX_BIT) << 31
}

fn metabox_nid(inode_number: u64) -> u64 {
    (inode_number & UPPER_HALF) >> 1 | inode_number & 0x7fff_ffff | (inode_number >> 31 & 1) << DIRENT_NID_METABOX_BIT
}

/// The fields that both forms of an inode have.
struct RawInode {
    format: u16,
    header_len: u64,
    xattr_count: u16,
    mode: u16,
    /// The upper 16 bits of addresses; `None` if addresses have 32 bits.
    start_hi: Option<u16>,
    size: u64,
    u: u32,
    uid: u32,
    gid: u32,
    link_count: u32,
    modified: Timestamp,
}

impl RawInode {
    fn of_compact(raw: &InodeCompact, parameters: &Parameters) -> Self {
        let is_directory = FileType::from_mode(raw.i_mode) == Some(FileType::Directory);
        let has_one_link = raw.i_format & format::I_NLINK_1 != 0 && !is_directory;
        let epoch = parameters.superblock.epoch;
        Self {
            format: raw.i_format,
            header_len: 32,
            xattr_count: raw.i_xattr_icount,
            mode: raw.i_mode,
            start_hi: has_one_link.then_some(raw.i_nb),
            size: u64::from(raw.i_size),
            u: raw.i_u,
            uid: u32::from(raw.i_uid),
            gid: u32::from(raw.i_gid),
            link_count: if has_one_link { 1 } else { u32::from(raw.i_nb) },
            modified: Timestamp { seconds: epoch.seconds.wrapping_add(i64::from(raw.i_mtime)), ..epoch },
        }
    }

    fn of_extended(raw: &InodeExtended) -> Self {
        Self {
            format: raw.i_format,
            header_len: 64,
            xattr_count: raw.i_xattr_icount,
            mode: raw.i_mode,
            start_hi: Some(raw.i_nb),
            size: raw.i_size,
            u: raw.i_u,
            uid: raw.i_uid,
            gid: raw.i_gid,
            link_count: raw.i_nlink,
            modified: Timestamp { seconds: raw.i_mtime.cast_signed(), nanoseconds: nanoseconds(raw.i_mtime_nsec) },
        }
    }

    fn start_block(&self) -> u64 {
        u64::from(self.start_hi.unwrap_or(0)) << 32 | u64::from(self.u)
    }

    fn layout(&self, parameters: &Parameters, nid: Nid, position: u64) -> Result<Layout> {
        let place = Place::inode_at(nid, position);
        Ok(match self.format >> format::I_DATALAYOUT_BIT & format::I_DATALAYOUT_MASK {
            format::INODE_FLAT_PLAIN => {
                let hole = if self.start_hi.is_some() { format::NULL_ADDR_48 } else { u64::from(format::NULL_ADDR_32) };
                Layout::Flat { start_block: Some(self.start_block()).filter(|start| *start != hole) }
            }
            format::INODE_FLAT_INLINE => Layout::FlatInline { start_block: self.start_block() },
            layout @ (format::INODE_COMPRESSED_FULL | format::INODE_COMPRESSED_COMPACT) => {
                if parameters.algorithms.is_empty() {
                    return Err(Error::corrupt("compressed inode in an image without algorithms", place));
                }
                Layout::Compressed { is_compact: layout == format::INODE_COMPRESSED_COMPACT }
            }
            format::INODE_CHUNK_BASED => {
                let bits = u16::try_from(self.u & 0xffff).unwrap_or(u16::MAX);
                if bits & !format::CHUNK_FORMAT_ALL != 0 {
                    return Err(Error::unsupported(format!("EROFS chunk format {bits:#x} (inode {nid})")));
                }
                let blocks_log2 = u8::try_from(bits & format::CHUNK_FORMAT_BLKBITS_MASK).unwrap_or(u8::MAX);
                Layout::Chunked(ChunkFormat {
                    chunk_size_log2: parameters.superblock.block_size.log2().saturating_add(blocks_log2),
                    has_indexes: bits & format::CHUNK_FORMAT_INDEXES != 0,
                    is_48bit: bits & format::CHUNK_FORMAT_48BIT != 0,
                })
            }
            other => return Err(Error::unsupported(format!("EROFS data layout {other} (inode {nid})"))),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{metabox_inode_number, metabox_nid};

    #[test]
    fn metabox_inode_numbers_move_the_top_bit_to_bit_31() {
        for (nid, expected) in [
            (0, 0),
            (36, 36),
            (1 << 63 | 36, 1 << 31 | 36),
            (0x8000_0000, 0x1_0000_0000),
            (1 << 63 | 0x1_8000_0001, 0x3_8000_0001),
        ] {
            assert_eq!(metabox_inode_number(nid), expected, "{nid:#x}");
            assert_eq!(metabox_nid(expected), nid, "{nid:#x}");
        }
    }
}
