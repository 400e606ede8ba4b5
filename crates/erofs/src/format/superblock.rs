//! The superblock, its features and the device table (docs/format/erofs.md, Superblock).

use super::raw_structs;

/// The first four bytes of the superblock.
pub const SUPER_MAGIC_V1: u32 = 0xE0F5_E1E2;
/// The offset of the superblock in bytes.
pub const SUPER_OFFSET: u64 = 1024;
/// The unit of `sb_extslots`, in bytes.
pub const SB_EXTSLOT_SIZE: usize = 16;
/// The smallest `blkszbits`: 512 bytes.
pub const BLOCK_SIZE_LOG2_MIN: u8 = 9;
/// The largest `blkszbits`: 64 KiB, the largest page size of Linux. The kernel does not mount an image whose blocks are
/// larger than its pages.
pub const BLOCK_SIZE_LOG2_MAX: u8 = 16;

/// The superblock has a crc32c.
pub const FEATURE_COMPAT_SB_CHKSUM: u32 = 0x1;
/// Timestamps are modification times.
pub const FEATURE_COMPAT_MTIME: u32 = 0x2;
/// Inodes have a bloom filter of their xattr names.
pub const FEATURE_COMPAT_XATTR_FILTER: u32 = 0x4;
/// Shared xattrs are in the metabox.
pub const FEATURE_COMPAT_SHARED_EA_IN_METABOX: u32 = 0x8;
/// Long xattr prefixes are in the image itself, rather than in the packed or the metabox inode.
pub const FEATURE_COMPAT_PLAIN_XATTR_PFX: u32 = 0x10;
/// An xattr holds a fingerprint that identifies equal files of several images.
pub const FEATURE_COMPAT_ISHARE_XATTRS: u32 = 0x20;

/// Compressed data is right-aligned in its pcluster.
pub const FEATURE_INCOMPAT_ZERO_PADDING: u32 = 0x1;
/// Algorithm configurations follow the superblock.
pub const FEATURE_INCOMPAT_COMPR_CFGS: u32 = 0x2;
/// Pclusters may have several blocks; the same bit as [`FEATURE_INCOMPAT_COMPR_CFGS`].
pub const FEATURE_INCOMPAT_BIG_PCLUSTER: u32 = 0x2;
/// Chunk-based inodes exist.
pub const FEATURE_INCOMPAT_CHUNKED_FILE: u32 = 0x4;
/// A device table exists.
pub const FEATURE_INCOMPAT_DEVICE_TABLE: u32 = 0x8;
/// A file may use two algorithms; the same bit as [`FEATURE_INCOMPAT_DEVICE_TABLE`].
pub const FEATURE_INCOMPAT_COMPR_HEAD2: u32 = 0x8;
/// The last pcluster may be inline.
pub const FEATURE_INCOMPAT_ZTAILPACKING: u32 = 0x10;
/// Tails or whole files may be in the packed inode.
pub const FEATURE_INCOMPAT_FRAGMENTS: u32 = 0x20;
/// Extents may use part of a pcluster; the same bit as [`FEATURE_INCOMPAT_FRAGMENTS`].
pub const FEATURE_INCOMPAT_DEDUPE: u32 = 0x20;
/// Long xattr name prefixes exist.
pub const FEATURE_INCOMPAT_XATTR_PREFIXES: u32 = 0x40;
/// Block addresses have 48 bits.
pub const FEATURE_INCOMPAT_48BIT: u32 = 0x80;
/// Inodes may be inside the metabox inode.
pub const FEATURE_INCOMPAT_METABOX: u32 = 0x100;
/// All known incompatible features.
pub const ALL_FEATURE_INCOMPAT: u32 = (FEATURE_INCOMPAT_METABOX << 1) - 1;

raw_structs! {
    /// The superblock, 128 bytes at [`SUPER_OFFSET`]. [`SuperBlockExtension`] may follow.
    pub struct SuperBlock: 128 {
        /// [`SUPER_MAGIC_V1`].
        pub magic: u32,
        /// crc32c, without its final inversion, of the superblock's block from [`SUPER_OFFSET`] on, with this field as
        /// zero.
        pub checksum: u32,
        /// The `FEATURE_COMPAT_` bits.
        pub feature_compat: u32,
        /// log2 of the block size.
        pub blkszbits: u8,
        /// The length of the superblock beyond 128 bytes, in units of [`SB_EXTSLOT_SIZE`].
        pub sb_extslots: u8,
        /// The nid of the root (`rootnid_2b`); if `rootnid_8b` contains the root, the upper 16 bits of the block count
        /// (`blocks_hi`).
        pub rb: u16,
        /// The number of inodes.
        pub inos: u64,
        /// The base of compact inodes' timestamps, in seconds; without 48BIT, their timestamp itself.
        pub epoch: u64,
        /// The nanoseconds of all compact inodes' timestamps.
        pub fixed_nsec: u32,
        /// The lower 32 bits of the block count.
        pub blocks_lo: u32,
        /// The first block of the metadata area, the base of nids.
        pub meta_blkaddr: u32,
        /// The first block of the shared xattrs.
        pub xattr_blkaddr: u32,
        /// The volume's UUID.
        pub uuid: [u8; 16],
        /// The volume label, padded with zero bytes.
        pub volume_name: [u8; 16],
        /// The `FEATURE_INCOMPAT_` bits.
        pub feature_incompat: u32,
        /// With COMPR_CFGS, a bit for each algorithm (`available_compr_algs`); otherwise LZ4's window in bytes
        /// (`lz4_max_distance`), where 0 means 65,535.
        pub u1: u16,
        /// The number of extra devices.
        pub extra_devices: u16,
        /// The start of the device table, in units of [`DeviceSlot::SIZE`] bytes.
        pub devt_slotoff: u16,
        /// log2 of the blocks per directory block; always 0.
        pub dirblkbits: u8,
        /// The number of long xattr name prefixes.
        pub xattr_prefix_count: u8,
        /// The start of the long xattr name prefixes, in units of 4 bytes.
        pub xattr_prefix_start: u32,
        /// The nid of the packed inode; 0 if there is none.
        pub packed_nid: u64,
        /// Added to the seed of the xattr filter hash; always 0.
        pub xattr_filter_reserved: u8,
        /// The long prefix of the fingerprint xattr (with ISHARE_XATTRS).
        pub ishare_xattr_prefix_id: u8,
        /// Zero.
        pub reserved: [u8; 2],
        /// The build time in seconds after `epoch`.
        pub build_time: u32,
        /// With 48BIT, the nid of the root; 0 if `rb` contains it.
        pub rootnid_8b: u64,
        /// Zero.
        pub reserved2: u64,
    }

    /// The extension of the superblock, present if `sb_extslots` is at least 1.
    pub struct SuperBlockExtension: 16 {
        /// With METABOX, the nid of the metabox inode.
        pub metabox_nid: u64,
        /// Zero.
        pub reserved: u64,
    }

    /// An entry of the device table.
    pub struct DeviceSlot: 128 {
        /// The identification of the device, padded with zero bytes: a digest or a file name.
        pub tag: [u8; 64],
        /// The lower 32 bits of the block count.
        pub blocks_lo: u32,
        /// The lower 32 bits of the device's first block in the unified address space; 0 if it is not mapped there.
        pub uniaddr_lo: u32,
        /// The upper 16 bits of the block count.
        pub blocks_hi: u16,
        /// The upper 16 bits of the unified block number.
        pub uniaddr_hi: u16,
        /// Zero.
        pub reserved: [u8; 52],
    }
}
