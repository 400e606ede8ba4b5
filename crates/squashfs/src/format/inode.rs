//! Inodes.

use super::{Field, Raw, raw_structs};

raw_structs! {
    /// What every inode begins with (section "Inodes").
    pub struct BaseInode: 16 {
        /// `…_TYPE`.
        pub inode_type: u16,
        /// The permission bits.
        pub mode: u16,
        /// The owner, as an index into the id table.
        pub uid: u16,
        /// The group, as an index into the id table.
        pub guid: u16,
        /// The time of the last change, in seconds since 1970.
        pub mtime: u32,
        /// The number of the inode, from 1 on.
        pub inode_number: u32,
    }

    /// The rest of a basic pipe's or socket's inode.
    pub struct IpcInode: 4 {
        /// Hard links.
        pub nlink: u32,
    }

    /// The rest of an extended pipe's or socket's inode.
    pub struct LIpcInode: 8 {
        /// Hard links.
        pub nlink: u32,
        /// The attribute set.
        pub xattr: u32,
    }

    /// The rest of a basic device's inode.
    pub struct DevInode: 8 {
        /// Hard links.
        pub nlink: u32,
        /// The device, in the kernel's 32-bit form.
        pub rdev: u32,
    }

    /// The rest of an extended device's inode.
    pub struct LDevInode: 12 {
        /// Hard links.
        pub nlink: u32,
        /// The device, in the kernel's 32-bit form.
        pub rdev: u32,
        /// The attribute set.
        pub xattr: u32,
    }

    /// The rest of a symbolic link's inode. The target follows; in an extended one, the attribute set follows that.
    pub struct SymlinkInode: 8 {
        /// Hard links.
        pub nlink: u32,
        /// The length of the target in bytes.
        pub symlink_size: u32,
    }

    /// The rest of a basic regular file's inode. The block list follows.
    pub struct RegInode: 16 {
        /// The first data block.
        pub start_block: u32,
        /// The fragment of the tail end, or [`ABSENT_FRAGMENT`](super::ABSENT_FRAGMENT).
        pub fragment: u32,
        /// Where in the decoded fragment the tail end begins.
        pub offset: u32,
        /// The size in bytes.
        pub file_size: u32,
    }

    /// The rest of an extended regular file's inode. The block list follows.
    pub struct LRegInode: 40 {
        /// The first data block.
        pub start_block: u64,
        /// The size in bytes.
        pub file_size: u64,
        /// How many of those bytes are in holes.
        pub sparse: u64,
        /// Hard links.
        pub nlink: u32,
        /// The fragment of the tail end, or [`ABSENT_FRAGMENT`](super::ABSENT_FRAGMENT).
        pub fragment: u32,
        /// Where in the decoded fragment the tail end begins.
        pub offset: u32,
        /// The attribute set.
        pub xattr: u32,
    }

    /// The rest of a basic directory's inode.
    pub struct DirInode: 16 {
        /// The metadata block of the listing, relative to the directory table.
        pub start_block: u32,
        /// Hard links.
        pub nlink: u32,
        /// The length of the listing, and [`DIRECTORY_SIZE_EXTRA`](super::DIRECTORY_SIZE_EXTRA).
        pub file_size: u16,
        /// Where in the decoded block the listing begins.
        pub offset: u16,
        /// The inode number of the parent.
        pub parent_inode: u32,
    }

    /// The rest of an extended directory's inode. The index follows.
    pub struct LDirInode: 24 {
        /// Hard links.
        pub nlink: u32,
        /// The length of the listing, and [`DIRECTORY_SIZE_EXTRA`](super::DIRECTORY_SIZE_EXTRA).
        pub file_size: u32,
        /// The metadata block of the listing, relative to the directory table.
        pub start_block: u32,
        /// The inode number of the parent.
        pub parent_inode: u32,
        /// How many index entries follow.
        pub i_count: u16,
        /// Where in the decoded block the listing begins.
        pub offset: u16,
        /// The attribute set.
        pub xattr: u32,
    }
}
