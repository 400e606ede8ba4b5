//! The superblock, compressor options (section "Compressor options"), and the tables of fragments and attributes.

use super::{Field, Raw, raw_structs};

raw_structs! {
    /// The superblock, at the beginning of an image, or at the end of a streamed one (section "Superblock").
    pub struct SuperBlock: 96 {
        /// [`MAGIC`](super::MAGIC).
        pub s_magic: u32,
        /// The number of inodes.
        pub inodes: u32,
        /// The build time in seconds since 1970.
        pub mkfs_time: u32,
        /// The size of a data block in bytes.
        pub block_size: u32,
        /// The number of fragment blocks.
        pub fragments: u32,
        /// The compressor.
        pub compression: u16,
        /// log2 of `block_size`.
        pub block_log: u16,
        /// `FLAG_…`.
        pub flags: u16,
        /// The number of ids.
        pub no_ids: u16,
        /// [`MAJOR`](super::MAJOR).
        pub s_major: u16,
        /// [`MINOR`](super::MINOR).
        pub s_minor: u16,
        /// The reference of the root inode.
        pub root_inode: u64,
        /// The length of the file system in bytes, without padding.
        pub bytes_used: u64,
        /// The start of the id table's list of blocks.
        pub id_table_start: u64,
        /// The start of the attribute id table's header.
        pub xattr_id_table_start: u64,
        /// The start of the inode table.
        pub inode_table_start: u64,
        /// The start of the directory table.
        pub directory_table_start: u64,
        /// The start of the fragment table's list of blocks.
        pub fragment_table_start: u64,
        /// The start of the export table's list of blocks.
        pub lookup_table_start: u64,
    }

    /// The options of the gzip compressor.
    pub struct GzipOptions: 8 {
        /// 1 to 9.
        pub compression_level: u32,
        /// log2 of the window, 8 to 15.
        pub window_size: u16,
        /// The strategies tried during compression, a bit for each.
        pub strategies: u16,
    }

    /// The options of the lzo compressor.
    pub struct LzoOptions: 8 {
        /// 0 to 4: lzo1x_1, lzo1x_1_11, lzo1x_1_12, lzo1x_1_15, lzo1x_999.
        pub algorithm: u32,
        /// 1 to 9, for lzo1x_999.
        pub compression_level: u32,
    }

    /// The options of the xz compressor.
    pub struct XzOptions: 8 {
        /// The dictionary size in bytes.
        pub dictionary_size: u32,
        /// The branch filters tried during compression, a bit for each.
        pub flags: u32,
    }

    /// The options of the lz4 compressor.
    pub struct Lz4Options: 8 {
        /// 1: raw blocks.
        pub version: u32,
        /// Bit 0: high compression; bit 1: a level or an acceleration follows.
        pub flags: u32,
    }

    /// The options of the zstd compressor.
    pub struct ZstdOptions: 4 {
        /// The level; negative for the fast levels.
        pub compression_level: i32,
    }

    /// An entry of the fragment table (section "Fragments").
    pub struct FragmentEntry: 16 {
        /// The start of the block.
        pub start_block: u64,
        /// Its size word.
        pub size: u32,
        /// Unused.
        pub unused: u32,
    }

    /// The header of the attribute id table, which precedes its list of blocks (section "Attributes").
    pub struct XattrIdTable: 16 {
        /// The start of the attributes' metadata blocks.
        pub xattr_table_start: u64,
        /// The number of sets.
        pub xattr_ids: u32,
        /// Unused.
        pub unused: u32,
    }

    /// An entry of the attribute id table: a set.
    pub struct XattrId: 16 {
        /// The reference of the first attribute; its block is relative to `xattr_table_start`.
        pub xattr: u64,
        /// The number of attributes.
        pub count: u32,
        /// Their length as the kernel adds it to `st_blocks`.
        pub size: u32,
    }

    /// An attribute. The name without its prefix follows, then an [`XattrVal`].
    pub struct XattrEntry: 4 {
        /// The prefix, and [`XATTR_VALUE_OUT_OF_LINE`](super::XATTR_VALUE_OUT_OF_LINE).
        pub kind: u16,
        /// The length of the name.
        pub size: u16,
    }

    /// An attribute's value. Its bytes follow, or a reference to an [`XattrVal`] elsewhere.
    pub struct XattrVal: 4 {
        /// The length of the bytes that follow.
        pub vsize: u32,
    }
}
