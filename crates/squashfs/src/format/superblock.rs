//! The superblock.

use super::{Field, Raw, raw_structs};

raw_structs! {
    /// What an image begins with; where it was streamed, ends with (section "Superblock").
    pub struct SuperBlock: 96 {
        /// [`MAGIC`](super::MAGIC).
        pub s_magic: u32,
        /// How many inodes there are.
        pub inodes: u32,
        /// When the image was made, in seconds since 1970.
        pub mkfs_time: u32,
        /// The size of a data block in bytes.
        pub block_size: u32,
        /// How many fragment blocks there are.
        pub fragments: u32,
        /// The compressor.
        pub compression: u16,
        /// log2 of `block_size`.
        pub block_log: u16,
        /// `FLAG_…`.
        pub flags: u16,
        /// How many ids there are.
        pub no_ids: u16,
        /// [`MAJOR`](super::MAJOR).
        pub s_major: u16,
        /// [`MINOR`](super::MINOR).
        pub s_minor: u16,
        /// The reference of the root's inode.
        pub root_inode: u64,
        /// How many bytes the file system takes, without padding.
        pub bytes_used: u64,
        /// The id table's list of blocks.
        pub id_table_start: u64,
        /// The header of the attribute id table.
        pub xattr_id_table_start: u64,
        /// The first block of the inode table.
        pub inode_table_start: u64,
        /// The first block of the directory table.
        pub directory_table_start: u64,
        /// The fragment table's list of blocks.
        pub fragment_table_start: u64,
        /// The export table's list of blocks.
        pub lookup_table_start: u64,
    }
}
