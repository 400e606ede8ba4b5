//! The superblock.

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
}
