//! Inodes and what they lead to (docs/format/erofs.md, Inodes): directories (docs/format/erofs.md, Directories), chunks
//! (docs/format/erofs.md, Chunks) and extended attributes (docs/format/erofs.md, Extended attributes).

use super::raw_structs;

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

    /// A directory entry. The names follow all entries of a block. A name ends where the next one begins; the last name
    /// ends at a zero byte or at the end of the block.
    pub struct Dirent: 12 {
        /// The inode that the entry refers to.
        pub nid: u64,
        /// The offset of the name within the block, in bytes.
        pub nameoff: u16,
        /// An `FT_` number.
        pub file_type: u8,
        /// Zero.
        pub reserved: u8,
    }

    /// The location of a chunk.
    pub struct InodeChunkIndex: 8 {
        /// The upper 16 bits of the first block number.
        pub startblk_hi: u16,
        /// The device; 0 for the image itself or for the unified address space.
        pub device_id: u16,
        /// The lower 32 bits of the first block number.
        pub startblk_lo: u32,
    }

    /// The header of the xattr body, which follows the inode. The 4-byte numbers of shared xattrs come next, then the
    /// inline entries.
    pub struct XattrIbodyHeader: 12 {
        /// The bloom filter: a set bit means that no name with that hash exists.
        pub h_name_filter: u32,
        /// The number of shared xattrs of the inode.
        pub h_shared_count: u8,
        /// Zero.
        pub h_reserved2: [u8; 7],
    }

    /// The header of an xattr entry. The name and the value follow.
    pub struct XattrEntry: 4 {
        /// The length of the name without its prefix, in bytes.
        pub e_name_len: u8,
        /// The prefix, an `XATTR_INDEX_` number.
        pub e_name_index: u8,
        /// The length of the value in bytes.
        pub e_value_size: u16,
    }
}

/// The longest name, in bytes.
pub const NAME_LEN: usize = 255;
/// The bit of a nid that is set if the inode is inside the metabox.
pub const DIRENT_NID_METABOX_BIT: u32 = 63;
/// The other bits of a nid.
pub const DIRENT_NID_MASK: u64 = (1 << DIRENT_NID_METABOX_BIT) - 1;

/// `file_type`: unknown.
pub const FT_UNKNOWN: u8 = 0;
/// `file_type`: a regular file.
pub const FT_REG_FILE: u8 = 1;
/// `file_type`: a directory.
pub const FT_DIR: u8 = 2;
/// `file_type`: a character device.
pub const FT_CHRDEV: u8 = 3;
/// `file_type`: a block device.
pub const FT_BLKDEV: u8 = 4;
/// `file_type`: a named pipe.
pub const FT_FIFO: u8 = 5;
/// `file_type`: a socket.
pub const FT_SOCK: u8 = 6;
/// `file_type`: a symbolic link.
pub const FT_SYMLINK: u8 = 7;

/// Chunk format: log2 of the number of blocks in a chunk.
pub const CHUNK_FORMAT_BLKBITS_MASK: u16 = 0x1f;
/// Chunk format: the map consists of [`InodeChunkIndex`] records rather than 4-byte block numbers.
pub const CHUNK_FORMAT_INDEXES: u16 = 0x20;
/// Chunk format: the upper 16 address bits of the records are valid.
pub const CHUNK_FORMAT_48BIT: u16 = 0x40;
/// All known bits of the chunk format.
pub const CHUNK_FORMAT_ALL: u16 = (CHUNK_FORMAT_48BIT << 1) - 1;
/// The size of a 4-byte map entry.
pub const BLOCK_MAP_ENTRY_SIZE: u64 = 4;
/// The 32-bit block number of a hole.
pub const NULL_ADDR_32: u32 = u32::MAX;
/// The 48-bit block number of a hole.
pub const NULL_ADDR_48: u64 = (1 << 48) - 1;

/// `e_name_index`: no prefix; the entry holds the whole name.
pub const XATTR_INDEX_NONE: u8 = 0;
/// `e_name_index`: `user.`
pub const XATTR_INDEX_USER: u8 = 1;
/// `e_name_index`: `system.posix_acl_access`
pub const XATTR_INDEX_POSIX_ACL_ACCESS: u8 = 2;
/// `e_name_index`: `system.posix_acl_default`
pub const XATTR_INDEX_POSIX_ACL_DEFAULT: u8 = 3;
/// `e_name_index`: `trusted.`
pub const XATTR_INDEX_TRUSTED: u8 = 4;
/// `e_name_index`: `lustre.`; never used.
pub const XATTR_INDEX_LUSTRE: u8 = 5;
/// `e_name_index`: `security.`
pub const XATTR_INDEX_SECURITY: u8 = 6;
/// `e_name_index`: the lower bits are the number of a long prefix.
pub const XATTR_LONG_PREFIX: u8 = 0x80;
/// The lower bits of `e_name_index`.
pub const XATTR_LONG_PREFIX_MASK: u8 = 0x7f;
/// The seed of the filter's xxh32; the name index is added to it.
pub const XATTR_FILTER_SEED: u32 = 0x25BB_E08F;
/// The size of the filter in bits.
pub const XATTR_FILTER_BITS: u32 = 32;
/// The initial value of the filter: every name is absent.
pub const XATTR_FILTER_DEFAULT: u32 = u32::MAX;
/// The alignment of entries in bytes.
pub const XATTR_ALIGN: u64 = 4;
