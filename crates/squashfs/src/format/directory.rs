//! Directories.

use super::{Field, Raw, raw_structs};

raw_structs! {
    /// An entry of a directory's index. The name follows (section "Directory index").
    pub struct DirIndex: 12 {
        /// Where in the listing the header is that this entry leads to.
        pub index: u32,
        /// The metadata block of that header, relative to the directory table.
        pub start_block: u32,
        /// The length of the name less 1.
        pub size: u32,
    }

    /// What stands before a run of dirents (section "Directories").
    pub struct DirHeader: 12 {
        /// How many dirents follow, less 1.
        pub count: u32,
        /// The metadata block of their inodes, relative to the inode table.
        pub start_block: u32,
        /// What the dirents' inode numbers are relative to.
        pub inode_number: u32,
    }

    /// A dirent. The name follows.
    pub struct DirEntry: 8 {
        /// Where in the decoded block the inode is.
        pub offset: u16,
        /// The inode number, relative to the header's.
        pub inode_number: i16,
        /// The basic type.
        pub kind: u16,
        /// The length of the name less 1.
        pub size: u16,
    }
}
