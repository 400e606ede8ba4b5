//! The superblock, its features and the device table (docs/format/erofs.md, Superblock).

use super::raw_structs;

/// The first four bytes of the superblock.
pub const SUPER_MAGIC_V1: u32 = 0xE0F5_E1E2;
/// Where the superblock begins, in bytes.
pub const SUPER_OFFSET: u64 = 1024;
/// What one step of `sb_extslots` adds to the superblock, in bytes.
pub const SB_EXTSLOT_SIZE: usize = 16;
/// The smallest `blkszbits`: 512 bytes.
pub const BLOCK_SIZE_LOG2_MIN: u8 = 9;
/// The largest `blkszbits`: 64 KiB, the largest page of the machines that Linux runs on. The kernel mounts no image whose
/// blocks are larger than its pages.
pub const BLOCK_SIZE_LOG2_MAX: u8 = 16;

/// The superblock has a crc32c.
pub const FEATURE_COMPAT_SB_CHKSUM: u32 = 0x1;
/// Times are of the last change of content.
pub const FEATURE_COMPAT_MTIME: u32 = 0x2;
/// Inodes have a bloom filter of their xattr names.
pub const FEATURE_COMPAT_XATTR_FILTER: u32 = 0x4;
/// Shared xattrs are in the metabox.
pub const FEATURE_COMPAT_SHARED_EA_IN_METABOX: u32 = 0x8;
/// Long xattr prefixes are in the image itself, not in the packed or the metabox inode.
pub const FEATURE_COMPAT_PLAIN_XATTR_PFX: u32 = 0x10;
/// An xattr holds a fingerprint by which equal files of several images are found.
pub const FEATURE_COMPAT_ISHARE_XATTRS: u32 = 0x20;

/// Compressed data is right-aligned in its pcluster.
pub const FEATURE_INCOMPAT_ZERO_PADDING: u32 = 0x1;
/// Algorithm configurations follow the superblock.
pub const FEATURE_INCOMPAT_COMPR_CFGS: u32 = 0x2;
/// Pclusters may have several blocks; the same bit as [`FEATURE_INCOMPAT_COMPR_CFGS`].
pub const FEATURE_INCOMPAT_BIG_PCLUSTER: u32 = 0x2;
/// There are chunk-based inodes.
pub const FEATURE_INCOMPAT_CHUNKED_FILE: u32 = 0x4;
/// There is a device table.
pub const FEATURE_INCOMPAT_DEVICE_TABLE: u32 = 0x8;
/// A file may use two algorithms; the same bit as [`FEATURE_INCOMPAT_DEVICE_TABLE`].
pub const FEATURE_INCOMPAT_COMPR_HEAD2: u32 = 0x8;
/// The last pcluster may be inline.
pub const FEATURE_INCOMPAT_ZTAILPACKING: u32 = 0x10;
/// Tails or whole files may be in the packed inode.
pub const FEATURE_INCOMPAT_FRAGMENTS: u32 = 0x20;
/// Pclusters may be shared in part; the same bit as [`FEATURE_INCOMPAT_FRAGMENTS`].
pub const FEATURE_INCOMPAT_DEDUPE: u32 = 0x20;
/// There are long xattr name prefixes.
pub const FEATURE_INCOMPAT_XATTR_PREFIXES: u32 = 0x40;
/// Block addresses have 48 bits.
pub const FEATURE_INCOMPAT_48BIT: u32 = 0x80;
/// Inodes may be inside the metabox inode.
pub const FEATURE_INCOMPAT_METABOX: u32 = 0x100;
/// All incompatible features that are known here.
pub const ALL_FEATURE_INCOMPAT: u32 = (FEATURE_INCOMPAT_METABOX << 1) - 1;

raw_structs! {
    /// The superblock, 128 bytes at [`SUPER_OFFSET`]; [`SuperBlockExtension`] may follow.
    pub struct SuperBlock: 128 {
        /// [`SUPER_MAGIC_V1`].
        pub magic: u32,
        /// crc32c of the superblock's block from [`SUPER_OFFSET`] on, this field taken as zero.
        pub checksum: u32,
        /// The `FEATURE_COMPAT_` bits.
        pub feature_compat: u32,
        /// log2 of the block size.
        pub blkszbits: u8,
        /// The superblock has 128 bytes and this many times [`SB_EXTSLOT_SIZE`].
        pub sb_extslots: u8,
        /// The nid of the root (`rootnid_2b`); with 48BIT the upper 16 bits of the block count (`blocks_hi`).
        pub rb: u16,
        /// How many inodes there are.
        pub inos: u64,
        /// The seconds that the times of compact inodes are counted from; without 48BIT their time.
        pub epoch: u64,
        /// The nanoseconds of all compact inodes.
        pub fixed_nsec: u32,
        /// The number of blocks, its lower 32 bits.
        pub blocks_lo: u32,
        /// The first block of the metadata area, which nids count from.
        pub meta_blkaddr: u32,
        /// The first block of the shared xattrs.
        pub xattr_blkaddr: u32,
        /// The volume's UUID.
        pub uuid: [u8; 16],
        /// The volume's name, padded with zero bytes.
        pub volume_name: [u8; 16],
        /// The `FEATURE_INCOMPAT_` bits.
        pub feature_incompat: u32,
        /// With COMPR_CFGS a bit for each algorithm (`available_compr_algs`), otherwise LZ4's window in bytes
        /// (`lz4_max_distance`), 0 for 64 KiB.
        pub u1: u16,
        /// How many devices there are besides the image.
        pub extra_devices: u16,
        /// Where the device table begins, in steps of [`DeviceSlot::SIZE`] bytes.
        pub devt_slotoff: u16,
        /// log2 of the number of blocks in a directory block; always 0.
        pub dirblkbits: u8,
        /// The number of long xattr name prefixes.
        pub xattr_prefix_count: u8,
        /// Where they begin, in steps of 4 bytes.
        pub xattr_prefix_start: u32,
        /// The nid of the packed inode, 0 where there is none.
        pub packed_nid: u64,
        /// Added to the seed of the xattr filter; always 0.
        pub xattr_filter_reserved: u8,
        /// The long prefix of the fingerprint xattr (with ISHARE_XATTRS).
        pub ishare_xattr_prefix_id: u8,
        /// Zero.
        pub reserved: [u8; 2],
        /// When the image was made, in seconds after `epoch`.
        pub build_time: u32,
        /// With 48BIT the nid of the root.
        pub rootnid_8b: u64,
        /// Zero.
        pub reserved2: u64,
    }

    /// What follows the superblock where `sb_extslots` is 1 or more.
    pub struct SuperBlockExtension: 16 {
        /// With METABOX the nid of the metabox inode.
        pub metabox_nid: u64,
        /// Zero.
        pub reserved: u64,
    }

    /// One extra device.
    pub struct DeviceSlot: 128 {
        /// What the device is known by, padded with zero bytes: a digest or a file name.
        pub tag: [u8; 64],
        /// The number of its blocks, the lower 32 bits.
        pub blocks_lo: u32,
        /// The block at which it stands in the unified address space, the lower 32 bits; 0 where it does not.
        pub uniaddr_lo: u32,
        /// The upper 16 bits of the number of blocks.
        pub blocks_hi: u16,
        /// The upper 16 bits of the unified address.
        pub uniaddr_hi: u16,
        /// Zero.
        pub reserved: [u8; 52],
    }
}
