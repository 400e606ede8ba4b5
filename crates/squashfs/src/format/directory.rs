//! Directories.

use super::{Field, Raw, raw_structs};

raw_structs! {
    /// An entry of a directory's index. The name follows (section "Directory index").
    pub struct DirIndex: 12 {
        /// The offset in the listing of the header that this entry refers to.
        pub index: u32,
        /// The metadata block of that header, relative to the directory table.
        pub start_block: u32,
        /// The length of the name minus 1.
        pub size: u32,
    }

    /// The header of a run of dirents (section "Directories").
    pub struct DirHeader: 12 {
        /// The number of dirents that follow, minus 1.
        pub count: u32,
        /// The metadata block that contains their inodes, relative to the inode table.
        pub start_block: u32,
        /// The base of the dirents' inode numbers.
        pub inode_number: u32,
    }

    /// A dirent. The name follows.
    pub struct DirEntry: 8 {
        /// The offset of the inode in the decoded block.
        pub offset: u16,
        /// The inode number, relative to the header's.
        pub inode_number: i16,
        /// The basic type.
        pub kind: u16,
        /// The length of the name minus 1.
        pub size: u16,
    }
}
