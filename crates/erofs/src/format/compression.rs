//! Compressed inodes and the configurations of the algorithms (docs/format/erofs.md, Compressed files).

use super::raw_structs;

/// The most bytes that a pcluster takes.
pub const PCLUSTER_MAX_SIZE: u64 = 1 << 20;
/// The most bytes that a pcluster decodes to.
pub const PCLUSTER_MAX_DSIZE: u64 = 12 << 20;
/// log2 of the largest lcluster that compact indexes can tell: 16 KiB.
pub const COMPACT_LCLUSTER_SIZE_LOG2_MAX: u8 = 14;
/// log2 of the largest lcluster that packs of 16 entries can tell: 4 KiB.
pub const COMPACT_2B_LCLUSTER_SIZE_LOG2_MAX: u8 = 12;

/// Algorithm: LZ4.
pub const COMPRESSION_LZ4: u8 = 0;
/// Algorithm: LZMA in MicroLZMA form.
pub const COMPRESSION_LZMA: u8 = 1;
/// Algorithm: raw DEFLATE.
pub const COMPRESSION_DEFLATE: u8 = 2;
/// Algorithm: Zstandard.
pub const COMPRESSION_ZSTD: u8 = 3;
/// The number of algorithms that are known here.
pub const COMPRESSION_MAX: u8 = 4;
/// The bits of all of them in `available_compr_algs`.
pub const ALL_COMPR_ALGS: u16 = (1 << COMPRESSION_MAX) - 1;

/// The largest LZMA dictionary, in bytes.
pub const LZMA_MAX_DICT_SIZE: u32 = 8 << 20;
/// The smallest LZMA dictionary, in bytes.
pub const LZMA_MIN_DICT_SIZE: u32 = 4096;
/// The largest zstd window, in bytes.
pub const ZSTD_MAX_DICT_SIZE: u32 = 1 << 20;
/// What is added to [`ZstdCfgs::windowlog`].
pub const ZSTD_WINDOWLOG_BASE: u8 = 10;
/// The largest LZ4 window, in bytes, and the default.
pub const LZ4_MAX_DISTANCE: u16 = u16::MAX;

/// `h_advise` with compact indexes: packs of 2-byte entries are used where they fit.
pub const ADVISE_COMPACTED_2B: u16 = 0x1;
/// `h_advise` with the full layout: [`Extent`] records are used.
pub const ADVISE_EXTENTS: u16 = 0x1;
/// `h_advise`: pclusters of HEAD1 may have several blocks.
pub const ADVISE_BIG_PCLUSTER_1: u16 = 0x2;
/// `h_advise`: pclusters of HEAD2 may have several blocks.
pub const ADVISE_BIG_PCLUSTER_2: u16 = 0x4;
/// `h_advise`: the last pcluster is inline.
pub const ADVISE_INLINE_PCLUSTER: u16 = 0x8;
/// `h_advise`: PLAIN pclusters are rotated, not shifted.
pub const ADVISE_INTERLACED_PCLUSTER: u16 = 0x10;
/// `h_advise`: the tail is in the packed inode.
pub const ADVISE_FRAGMENT_PCLUSTER: u16 = 0x20;
/// `h_advise` with [`ADVISE_EXTENTS`]: the number of the lowest bit of the record size.
pub const ADVISE_EXTRECSZ_BIT: u16 = 1;
/// `h_advise` with [`ADVISE_EXTENTS`], shifted down: log2 of the record size, less 2.
pub const ADVISE_EXTRECSZ_MASK: u16 = 0x3;
/// `h_clusterbits`: the lower bits are log2 of the lcluster size, less that of the block size.
pub const CLUSTERBITS_MASK: u8 = 0xf;
/// The bit of `h_clusterbits` that says: the whole file is in the packed inode, at the offset that the other 63 bits
/// of the map header are.
pub const FRAGMENT_INODE_BIT: u8 = 7;

/// lcluster type: not compressed.
pub const LCLUSTER_TYPE_PLAIN: u16 = 0;
/// lcluster type: a pcluster of the first algorithm begins.
pub const LCLUSTER_TYPE_HEAD1: u16 = 1;
/// lcluster type: no pcluster begins.
pub const LCLUSTER_TYPE_NONHEAD: u16 = 2;
/// lcluster type: a pcluster of the second algorithm begins.
pub const LCLUSTER_TYPE_HEAD2: u16 = 3;
/// The bits of `di_advise` that are the type.
pub const LI_LCLUSTER_TYPE_MASK: u16 = 0x3;
/// `di_advise` of a HEAD lcluster: the pcluster decodes to more than this extent, and where it ends is not known.
pub const LI_PARTIAL_REF: u16 = 0x8000;
/// `di_advise` of a HEAD lcluster: the extent is a hole.
pub const LI_HOLE: u16 = 0x4000;
/// The bit of a first distance that says: the rest of it is the number of blocks of the pcluster.
pub const LI_D0_CBLKCNT: u16 = 0x800;

/// `plen` of an [`Extent`]: the pcluster decodes to more than the extent.
pub const EXTENT_PLEN_PARTIAL: u32 = 1 << 27;
/// `plen` of an [`Extent`]: the number of the lowest bit of 1 + the algorithm; 0 says not compressed.
pub const EXTENT_PLEN_FMT_BIT: u32 = 28;
/// `plen` of an [`Extent`]: the bits that are the stored length in bytes.
pub const EXTENT_PLEN_MASK: u32 = (2 << 20) - 1;

raw_structs! {
    /// LZ4's configuration. A 16-bit length precedes it, as it does the other ones.
    pub struct Lz4Cfgs: 14 {
        /// The window in bytes; 0 for 64 KiB.
        pub max_distance: u16,
        /// The largest pcluster, in blocks.
        pub max_pclusterblks: u16,
        /// Zero.
        pub reserved: [u8; 10],
    }

    /// LZMA's configuration.
    pub struct LzmaCfgs: 14 {
        /// The dictionary in bytes.
        pub dict_size: u32,
        /// Always 0.
        pub format: u16,
        /// Zero.
        pub reserved: [u8; 8],
    }

    /// DEFLATE's configuration.
    pub struct DeflateCfgs: 6 {
        /// log2 of the window, 8 to 15.
        pub windowbits: u8,
        /// Zero.
        pub reserved: [u8; 5],
    }

    /// Zstandard's configuration.
    pub struct ZstdCfgs: 6 {
        /// Always 0.
        pub format: u8,
        /// log2 of the window, less [`ZSTD_WINDOWLOG_BASE`].
        pub windowlog: u8,
        /// Zero.
        pub reserved: [u8; 4],
    }

    /// What stands behind a compressed inode and its xattrs, at the next multiple of 8 bytes.
    pub struct MapHeader: 8 {
        /// The fragment's offset in the packed inode (`h_fragmentoff`); or in the upper 16 bits the size of the inline
        /// pcluster (`h_idata_size`); or the lower 32 bits of the number of extents (`h_extents_lo`).
        pub h_u: u32,
        /// The `ADVISE_` bits.
        pub h_advise: u16,
        /// The algorithms of HEAD1 (lower 4 bits) and HEAD2; with [`ADVISE_EXTENTS`] bits 32 to 39 of the number of
        /// extents (`h_extents_hi`).
        pub h_algorithmtype: u8,
        /// [`CLUSTERBITS_MASK`] and [`FRAGMENT_INODE_BIT`]; with [`ADVISE_EXTENTS`] bits 40 to 47 of the number of
        /// extents.
        pub h_clusterbits: u8,
    }

    /// What is said of an lcluster in the full index, which begins 8 bytes behind the map header.
    pub struct LclusterIndex: 8 {
        /// The type and the `LI_` bits.
        pub di_advise: u16,
        /// Where in the lcluster the extent begins, in bytes.
        pub di_clusterofs: u16,
        /// The block of the pcluster (`blkaddr`); for NONHEAD the distances to its head (`delta[0]`, lower 16 bits) and
        /// to the next head (`delta[1]`).
        pub di_u: u32,
    }

    /// An encoded extent, in its longest form. Shorter records are its beginning.
    pub struct Extent: 32 {
        /// The stored length in bytes and the `EXTENT_PLEN_` bits; for a fragment the lower 32 bits of its offset.
        pub plen: u32,
        /// The stored bytes' place, its lower 32 bits.
        pub pstart_lo: u32,
        /// The upper bits of it.
        pub pstart_hi: u32,
        /// Where in the file the extent begins, the lower 32 bits.
        pub lstart_lo: u32,
        /// The upper bits of it.
        pub lstart_hi: u32,
        /// Zero.
        pub reserved: [u8; 12],
    }
}
