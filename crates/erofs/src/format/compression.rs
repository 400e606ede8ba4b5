//! Compressed inodes and the configuration of algorithms (docs/format/erofs.md, Compressed files).

use super::raw_structs;

/// The largest stored size of a pcluster, in bytes.
pub const PCLUSTER_MAX_SIZE: u64 = 1 << 20;
/// The largest decoded size of a pcluster, in bytes.
pub const PCLUSTER_MAX_DSIZE: u64 = 12 << 20;
/// log2 of the largest lcluster that compact indexes support: 16 KiB.
pub const COMPACT_LCLUSTER_SIZE_LOG2_MAX: u8 = 14;
/// log2 of the largest lcluster that packs of 16 entries support: 4 KiB.
pub const COMPACT_2B_LCLUSTER_SIZE_LOG2_MAX: u8 = 12;

/// Algorithm: LZ4.
pub const COMPRESSION_LZ4: u8 = 0;
/// Algorithm: LZMA in MicroLZMA form.
pub const COMPRESSION_LZMA: u8 = 1;
/// Algorithm: raw DEFLATE.
pub const COMPRESSION_DEFLATE: u8 = 2;
/// Algorithm: Zstandard.
pub const COMPRESSION_ZSTD: u8 = 3;
/// The number of known algorithms.
pub const COMPRESSION_MAX: u8 = 4;
/// All known bits of `available_compr_algs`.
pub const ALL_COMPR_ALGS: u16 = (1 << COMPRESSION_MAX) - 1;

/// The largest LZMA dictionary, in bytes.
pub const LZMA_MAX_DICT_SIZE: u32 = 8 << 20;
/// The smallest LZMA dictionary, in bytes.
pub const LZMA_MIN_DICT_SIZE: u32 = 4096;
/// The largest zstd window, in bytes.
pub const ZSTD_MAX_DICT_SIZE: u32 = 1 << 20;
/// Added to [`ZstdCfgs::windowlog`].
pub const ZSTD_WINDOWLOG_BASE: u8 = 10;
/// The largest LZ4 window in bytes, also the default.
pub const LZ4_MAX_DISTANCE: u16 = u16::MAX;

/// `h_advise` with compact indexes: packs of sixteen entries replace packs of two wherever they fit.
pub const ADVISE_COMPACTED_2B: u16 = 0x1;
/// `h_advise` with the full layout: [`Extent`] records replace the index.
pub const ADVISE_EXTENTS: u16 = 0x1;
/// `h_advise`: pclusters of HEAD1 may have several blocks.
pub const ADVISE_BIG_PCLUSTER_1: u16 = 0x2;
/// `h_advise`: pclusters of PLAIN and HEAD2 may have several blocks.
pub const ADVISE_BIG_PCLUSTER_2: u16 = 0x4;
/// `h_advise`: the last pcluster is inline.
pub const ADVISE_INLINE_PCLUSTER: u16 = 0x8;
/// `h_advise`: PLAIN pclusters are rotated, not shifted.
pub const ADVISE_INTERLACED_PCLUSTER: u16 = 0x10;
/// `h_advise`: the tail is in the packed inode.
pub const ADVISE_FRAGMENT_PCLUSTER: u16 = 0x20;
/// `h_advise` with [`ADVISE_EXTENTS`]: position of the record size's lowest bit.
pub const ADVISE_EXTRECSZ_BIT: u16 = 1;
/// `h_advise` with [`ADVISE_EXTENTS`], shifted down: log2 of the record size minus 2.
pub const ADVISE_EXTRECSZ_MASK: u16 = 0x3;
/// `h_clusterbits`: the lower bits hold log2 of the lcluster size relative to the block size.
pub const CLUSTERBITS_MASK: u8 = 0xf;
/// The bit of `h_clusterbits` that is set if the whole file is a fragment. The other 63 bits of the map header are then
/// its offset in the packed inode.
pub const FRAGMENT_INODE_BIT: u8 = 7;

/// lcluster type: not compressed.
pub const LCLUSTER_TYPE_PLAIN: u16 = 0;
/// lcluster type: a pcluster of the first algorithm begins.
pub const LCLUSTER_TYPE_HEAD1: u16 = 1;
/// lcluster type: no pcluster begins.
pub const LCLUSTER_TYPE_NONHEAD: u16 = 2;
/// lcluster type: a pcluster of the second algorithm begins.
pub const LCLUSTER_TYPE_HEAD2: u16 = 3;
/// The bits of `di_advise` that hold the type.
pub const LI_LCLUSTER_TYPE_MASK: u16 = 0x3;
/// `di_advise` of a HEAD lcluster: the pcluster decodes to more than this extent, and its decoded length is unknown.
pub const LI_PARTIAL_REF: u16 = 0x8000;
/// `di_advise` of a HEAD lcluster: the extent is a hole.
pub const LI_HOLE: u16 = 0x4000;
/// The bit of a first distance that is set if the remaining bits are the pcluster's block count.
pub const LI_D0_CBLKCNT: u16 = 0x800;

/// `plen` of an [`Extent`]: the pcluster decodes to more than the extent.
pub const EXTENT_PLEN_PARTIAL: u32 = 1 << 27;
/// `plen` of an [`Extent`]: position of the lowest bit of the algorithm plus 1; 0 means uncompressed.
pub const EXTENT_PLEN_FMT_BIT: u32 = 28;
/// `plen` of an [`Extent`]: the bits that hold the stored length in bytes.
pub const EXTENT_PLEN_MASK: u32 = (2 << 20) - 1;

raw_structs! {
    /// The configuration of LZ4. A 16-bit length precedes each configuration.
    pub struct Lz4Cfgs: 14 {
        /// The window in bytes; 0 means [`LZ4_MAX_DISTANCE`].
        pub max_distance: u16,
        /// The largest pcluster, in blocks.
        pub max_pclusterblks: u16,
        /// Zero.
        pub reserved: [u8; 10],
    }

    /// The configuration of LZMA.
    pub struct LzmaCfgs: 14 {
        /// The dictionary size in bytes.
        pub dict_size: u32,
        /// Always 0.
        pub format: u16,
        /// Zero.
        pub reserved: [u8; 8],
    }

    /// The configuration of DEFLATE.
    pub struct DeflateCfgs: 6 {
        /// log2 of the window, 8 to 15.
        pub windowbits: u8,
        /// Zero.
        pub reserved: [u8; 5],
    }

    /// The configuration of Zstandard.
    pub struct ZstdCfgs: 6 {
        /// Always 0.
        pub format: u8,
        /// log2 of the window minus [`ZSTD_WINDOWLOG_BASE`].
        pub windowlog: u8,
        /// Zero.
        pub reserved: [u8; 4],
    }

    /// The map header. It follows a compressed inode and its xattrs, at the next multiple of 8 bytes.
    pub struct MapHeader: 8 {
        /// By type of map: the fragment's offset in the packed inode (`h_fragmentoff`); the size of the inline pcluster
        /// in the upper 16 bits (`h_idata_size`); or the lower 32 bits of the extent count (`h_extents_lo`).
        pub h_u: u32,
        /// The `ADVISE_` bits.
        pub h_advise: u16,
        /// The algorithms of HEAD1 (lower 4 bits) and HEAD2; with [`ADVISE_EXTENTS`], bits 32 to 39 of the extent count
        /// (`h_extents_hi`).
        pub h_algorithmtype: u8,
        /// [`CLUSTERBITS_MASK`] and [`FRAGMENT_INODE_BIT`]; with [`ADVISE_EXTENTS`], bits 40 to 47 of the extent count.
        pub h_clusterbits: u8,
    }

    /// A record of the full index, which begins 8 bytes after the map header.
    pub struct LclusterIndex: 8 {
        /// The type and the `LI_` bits.
        pub di_advise: u16,
        /// The offset in the lcluster at which the extent begins, in bytes.
        pub di_clusterofs: u16,
        /// The first block of the pcluster (`blkaddr`); for NONHEAD, the distances back to its head (`delta[0]`, lower
        /// 16 bits) and ahead to the next head (`delta[1]`).
        pub di_u: u32,
    }

    /// An encoded extent in its longest form. Shorter records are prefixes of it.
    pub struct Extent: 32 {
        /// The stored length in bytes and the `EXTENT_PLEN_` bits; for a fragment, the lower 32 bits of its offset.
        pub plen: u32,
        /// The lower 32 bits of the stored position.
        pub pstart_lo: u32,
        /// The upper bits of the stored position.
        pub pstart_hi: u32,
        /// The lower 32 bits of the extent's offset in the file.
        pub lstart_lo: u32,
        /// The upper bits of the extent's offset in the file.
        pub lstart_hi: u32,
        /// Zero.
        pub reserved: [u8; 12],
    }
}
