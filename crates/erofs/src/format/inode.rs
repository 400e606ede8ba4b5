//! Inodes (docs/format/erofs.md, Inodes).

use super::{FEATURE_INCOMPAT_48BIT, raw_structs};

/// The unit of nids, in bytes.
pub const INODE_SLOT_SIZE: u64 = 32;

/// `i_format` bit 0: the inode is [`InodeExtended`], not [`InodeCompact`].
pub const I_VERSION_MASK: u16 = 0x1;
/// `i_format`: position of the data layout's lowest bit.
pub const I_DATALAYOUT_BIT: u16 = 1;
/// `i_format`, shifted down by [`I_DATALAYOUT_BIT`]: the data layout.
pub const I_DATALAYOUT_MASK: u16 = 0x7;
/// `i_format` bit 4 of a compact inode other than a directory, with 48BIT: the link count is 1, and the field for the
/// link count holds upper address bits.
pub const I_NLINK_1: u16 = 0x10;
/// `i_format` bit 4 of a directory, with 48BIT: the directory has no `.` entry.
pub const I_DOT_OMITTED: u16 = 0x10;
/// All known bits of `i_format`.
pub const I_ALL: u16 = 0x1f;

/// Data layout: contiguous blocks.
pub const INODE_FLAT_PLAIN: u16 = 0;
/// Data layout: compressed, with [`LclusterIndex`](super::LclusterIndex) or [`Extent`](super::Extent) records.
pub const INODE_COMPRESSED_FULL: u16 = 1;
/// Data layout: contiguous blocks; the tail follows the inode.
pub const INODE_FLAT_INLINE: u16 = 2;
/// Data layout: compressed, with compact indexes.
pub const INODE_COMPRESSED_COMPACT: u16 = 3;
/// Data layout: chunks.
pub const INODE_CHUNK_BASED: u16 = 4;

raw_structs! {
    /// The short form of an inode.
    pub struct InodeCompact: 32 {
        /// The version, the data layout and flags.
        pub i_format: u16,
        /// 0 without xattrs, otherwise 1 plus the length after their 12-byte header in units of 4 bytes.
        pub i_xattr_icount: u16,
        /// Type and permissions.
        pub i_mode: u16,
        /// The link count (`nlink`), or with [`I_NLINK_1`] the upper bits of the address or block count in `i_u`
        /// (`startblk_hi`, `blocks_hi`).
        pub i_nb: u16,
        /// The size in bytes.
        pub i_size: u32,
        /// With 48BIT, seconds after the superblock's `epoch`.
        pub i_mtime: u32,
        /// By data layout: the number of compressed blocks (`blocks_lo`), the first block (`startblk_lo`), the device
        /// number (`rdev`), or the chunk format in the lower 16 bits (`c.format`).
        pub i_u: u32,
        /// The inode number that 32-bit systems show in `stat`.
        pub i_ino: u32,
        /// The owner.
        pub i_uid: u16,
        /// The group.
        pub i_gid: u16,
        /// Zero.
        pub i_reserved: u32,
    }

    /// The long form of an inode.
    pub struct InodeExtended: 64 {
        /// The version, the data layout and flags.
        pub i_format: u16,
        /// As in [`InodeCompact`].
        pub i_xattr_icount: u16,
        /// Type and permissions.
        pub i_mode: u16,
        /// The upper bits of the address or block count in `i_u` (`startblk_hi`, `blocks_hi`), with 48BIT.
        pub i_nb: u16,
        /// The size in bytes.
        pub i_size: u64,
        /// As in [`InodeCompact`].
        pub i_u: u32,
        /// The inode number that 32-bit systems show in `stat`.
        pub i_ino: u32,
        /// The owner.
        pub i_uid: u32,
        /// The group.
        pub i_gid: u32,
        /// The modification time in seconds, signed.
        pub i_mtime: u64,
        /// The nanoseconds of the modification time.
        pub i_mtime_nsec: u32,
        /// The link count.
        pub i_nlink: u32,
        /// Zero.
        pub i_reserved2: [u8; 16],
    }
}

/// Whether `i_format` has unknown bits, or bits that require a feature the image does not have.
pub const fn has_unknown_format_bits(i_format: u16, feature_incompat: u32) -> bool {
    let known = if feature_incompat & FEATURE_INCOMPAT_48BIT != 0 { I_ALL } else { I_ALL & !I_NLINK_1 };
    i_format & !known != 0
}
