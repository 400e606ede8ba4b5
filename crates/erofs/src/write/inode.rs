//! Compact and extended inodes (docs/format/erofs.md, Inodes).

use floe_image::{FileType, Timestamp};

use super::{high_u16, low_u32};
use crate::format::{self, InodeCompact, InodeExtended};

/// The data of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InodeData {
    /// No data, or a device with this number in the kernel's 32-bit form.
    Device(u32),
    /// Contiguous blocks; if `inline`, the tail follows the inode.
    Flat {
        /// The first block; `None` if there is none.
        start_block: Option<u64>,
        /// Whether the tail after the last full block follows the inode.
        inline: bool,
    },
    /// Compressed.
    Compressed {
        /// The number of blocks that the pclusters take.
        blocks: u64,
        /// Whether a compact index follows, rather than a full one or extents.
        compact: bool,
    },
    /// Chunks, with this format word.
    Chunked {
        /// The `CHUNK_FORMAT_` bits.
        format: u16,
    },
}

/// The fields of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InodeRecord {
    /// The type of the inode.
    pub file_type: FileType,
    /// The twelve permission bits.
    pub permissions: u16,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The number of hard links.
    pub link_count: u32,
    /// The size in bytes.
    pub size: u64,
    /// The modification time.
    pub modified: Timestamp,
    /// The inode number for 32-bit systems, unique as far as 32 bits allow.
    pub number: u32,
    /// The data.
    pub data: InodeData,
}

/// The choice between compact and extended inodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum InodeForm {
    /// Compact if possible.
    #[default]
    Smallest,
    /// Always extended.
    Extended,
}

/// Rules of the superblock that affect all inodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InodeRules {
    /// The base of compact inodes' timestamps.
    pub epoch: Timestamp,
    /// Whether the image has the 48-bit layout, in which compact inodes have their own timestamp and wider addresses.
    pub wide: bool,
    /// The choice of form.
    pub form: InodeForm,
}

impl InodeRecord {
    /// The size of the inode itself in bytes, 32 or 64.
    pub fn len(&self, rules: &InodeRules) -> u64 {
        let size = if self.is_compact(rules) { InodeCompact::SIZE } else { InodeExtended::SIZE };
        u64::try_from(size).unwrap_or(u64::MAX)
    }

    /// The on-disk form of the inode. `xattr_body_len` is the length in bytes of the xattr body that follows.
    pub fn to_bytes(&self, rules: &InodeRules, xattr_body_len: usize) -> Vec<u8> {
        let compact = self.is_compact(rules);
        let (layout, i_u, upper) = self.place();
        let mut i_format = layout << format::I_DATALAYOUT_BIT;
        let i_xattr_icount = u16::try_from(xattr_body_len.saturating_sub(8) / 4).unwrap_or(u16::MAX);
        let i_mode = self.file_type.mode_bits() | self.permissions;
        if compact {
            let link_count = u16::try_from(self.link_count).unwrap_or(u16::MAX);
            let i_nb = if self.needs_upper() {
                i_format |= format::I_NLINK_1;
                upper
            } else {
                link_count
            };
            let since = self.modified.seconds.wrapping_sub(rules.epoch.seconds);
            InodeCompact {
                i_format,
                i_xattr_icount,
                i_mode,
                i_nb,
                i_size: low_u32(self.size),
                i_mtime: if rules.wide { u32::try_from(since).unwrap_or(0) } else { 0 },
                i_u,
                i_ino: self.number,
                i_uid: u16::try_from(self.uid).unwrap_or(u16::MAX),
                i_gid: u16::try_from(self.gid).unwrap_or(u16::MAX),
                i_reserved: 0,
            }
            .to_bytes()
            .to_vec()
        } else {
            InodeExtended {
                i_format: i_format | format::I_VERSION_MASK,
                i_xattr_icount,
                i_mode,
                i_nb: if rules.wide { upper } else { 0 },
                i_size: self.size,
                i_u,
                i_ino: self.number,
                i_uid: self.uid,
                i_gid: self.gid,
                i_mtime: self.modified.seconds.cast_unsigned(),
                i_mtime_nsec: self.modified.nanoseconds,
                i_nlink: self.link_count,
                i_reserved2: [0; 16],
            }
            .to_bytes()
            .to_vec()
        }
    }

    /// The data layout, the field that depends on it, and the upper bits of that field.
    fn place(&self) -> (u16, u32, u16) {
        match self.data {
            InodeData::Device(number) => (format::INODE_FLAT_PLAIN, number, 0),
            InodeData::Flat { start_block, inline } => {
                let layout = if inline { format::INODE_FLAT_INLINE } else { format::INODE_FLAT_PLAIN };
                match start_block {
                    Some(block) => (layout, low_u32(block), high_u16(block)),
                    None => (layout, u32::MAX, u16::MAX),
                }
            }
            InodeData::Compressed { blocks, compact } => {
                let layout = if compact { format::INODE_COMPRESSED_COMPACT } else { format::INODE_COMPRESSED_FULL };
                (layout, low_u32(blocks), high_u16(blocks))
            }
            InodeData::Chunked { format: chunk_format } => (format::INODE_CHUNK_BASED, u32::from(chunk_format), 0),
        }
    }

    /// Whether the upper address bits are needed; an inode without blocks needs 32 bits only.
    fn needs_upper(&self) -> bool {
        let none = matches!(self.data, InodeData::Flat { start_block: None, .. });
        !none && self.place().2 != 0
    }

    fn is_compact(&self, rules: &InodeRules) -> bool {
        let time_fits = if rules.wide {
            let since = self.modified.seconds.checked_sub(rules.epoch.seconds);
            self.modified.nanoseconds == rules.epoch.nanoseconds
                && since.is_some_and(|since| u32::try_from(since).is_ok())
        } else {
            self.modified == rules.epoch
        };
        let links_fit = if self.needs_upper() { self.link_count == 1 } else { self.link_count <= u32::from(u16::MAX) };
        rules.form == InodeForm::Smallest
            && time_fits
            && links_fit
            && u32::try_from(self.size).is_ok()
            && u16::try_from(self.uid).is_ok()
            && u16::try_from(self.gid).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_compact_form_is_used_if_possible() {
        let epoch = Timestamp { seconds: 1000, nanoseconds: 0 };
        let plain = InodeRecord {
            file_type: FileType::Regular,
            permissions: 0o644,
            uid: 1,
            gid: 2,
            link_count: 1,
            size: 5,
            modified: epoch,
            number: 9,
            data: InodeData::Flat { start_block: Some(3), inline: false },
        };
        let narrow = InodeRules { epoch, wide: false, form: InodeForm::Smallest };
        let wide = InodeRules { wide: true, ..narrow };
        let later = Timestamp { seconds: 2000, nanoseconds: 0 };
        let far = InodeData::Flat { start_block: Some(1 << 33), inline: false };
        for (record, rules, expected) in [
            (plain, narrow, 32),
            (plain, InodeRules { form: InodeForm::Extended, ..narrow }, 64),
            (InodeRecord { uid: 65536, ..plain }, narrow, 64),
            (InodeRecord { size: 1 << 32, ..plain }, narrow, 64),
            (InodeRecord { link_count: 65536, ..plain }, narrow, 64),
            (InodeRecord { modified: later, ..plain }, narrow, 64),
            (InodeRecord { modified: later, ..plain }, wide, 32),
            (InodeRecord { modified: Timestamp { nanoseconds: 1, ..later }, ..plain }, wide, 64),
            (InodeRecord { data: far, ..plain }, wide, 32),
            (InodeRecord { data: far, link_count: 2, ..plain }, wide, 64),
        ] {
            assert_eq!(record.len(&rules), expected, "{record:?}");
            assert_eq!(record.to_bytes(&rules, 0).len() as u64, expected);
        }
        let raw = InodeCompact::from_prefix(&plain.to_bytes(&narrow, 12)).expect("it is whole");
        assert_eq!((raw.i_nb, raw.i_u, raw.i_xattr_icount, raw.i_mode), (1, 3, 1, 0o100_644));
    }
}
