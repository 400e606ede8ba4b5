//! Inodes and directories.

use super::{Field, Raw, raw_structs};

raw_structs! {
    /// The header of every inode (section "Inodes").
    pub struct BaseInode: 16 {
        /// `…_TYPE`.
        pub inode_type: u16,
        /// The permission bits.
        pub mode: u16,
        /// The owner, as an index into the id table.
        pub uid: u16,
        /// The group, as an index into the id table.
        pub guid: u16,
        /// The modification time in seconds since 1970.
        pub mtime: u32,
        /// The inode number, starting at 1.
        pub inode_number: u32,
    }

    /// The rest of a basic FIFO or socket inode.
    pub struct IpcInode: 4 {
        /// Hard links.
        pub nlink: u32,
    }

    /// The rest of an extended FIFO or socket inode.
    pub struct LIpcInode: 8 {
        /// Hard links.
        pub nlink: u32,
        /// The attribute set.
        pub xattr: u32,
    }

    /// The rest of a basic device inode.
    pub struct DevInode: 8 {
        /// Hard links.
        pub nlink: u32,
        /// The device, in the kernel's 32-bit form.
        pub rdev: u32,
    }

    /// The rest of an extended device inode.
    pub struct LDevInode: 12 {
        /// Hard links.
        pub nlink: u32,
        /// The device, in the kernel's 32-bit form.
        pub rdev: u32,
        /// The attribute set.
        pub xattr: u32,
    }

    /// The rest of a symbolic link inode. The target follows; in an extended inode, the attribute set follows the
    /// target.
    pub struct SymlinkInode: 8 {
        /// Hard links.
        pub nlink: u32,
        /// The length of the target in bytes.
        pub symlink_size: u32,
    }

    /// The rest of a basic regular file inode. The block list follows.
    pub struct RegInode: 16 {
        /// The position of the first data block.
        pub start_block: u32,
        /// The fragment of the tail end, or [`ABSENT_FRAGMENT`](super::ABSENT_FRAGMENT).
        pub fragment: u32,
        /// The offset of the tail end in the decoded fragment.
        pub offset: u32,
        /// The size in bytes.
        pub file_size: u32,
    }

    /// The rest of an extended regular file inode. The block list follows.
    pub struct LRegInode: 40 {
        /// The position of the first data block.
        pub start_block: u64,
        /// The size in bytes.
        pub file_size: u64,
        /// The number of bytes in holes.
        pub sparse: u64,
        /// Hard links.
        pub nlink: u32,
        /// The fragment of the tail end, or [`ABSENT_FRAGMENT`](super::ABSENT_FRAGMENT).
        pub fragment: u32,
        /// The offset of the tail end in the decoded fragment.
        pub offset: u32,
        /// The attribute set.
        pub xattr: u32,
    }

    /// The rest of a basic directory inode.
    pub struct DirInode: 16 {
        /// The metadata block of the listing, relative to the directory table.
        pub start_block: u32,
        /// Hard links.
        pub nlink: u32,
        /// The length of the listing plus [`DIRECTORY_SIZE_EXTRA`](super::DIRECTORY_SIZE_EXTRA).
        pub file_size: u16,
        /// The offset of the listing in the decoded block.
        pub offset: u16,
        /// The inode number of the parent.
        pub parent_inode: u32,
    }

    /// The rest of an extended directory inode. The index follows.
    pub struct LDirInode: 24 {
        /// Hard links.
        pub nlink: u32,
        /// The length of the listing plus [`DIRECTORY_SIZE_EXTRA`](super::DIRECTORY_SIZE_EXTRA).
        pub file_size: u32,
        /// The metadata block of the listing, relative to the directory table.
        pub start_block: u32,
        /// The inode number of the parent.
        pub parent_inode: u32,
        /// The number of index entries that follow.
        pub i_count: u16,
        /// The offset of the listing in the decoded block.
        pub offset: u16,
        /// The attribute set.
        pub xattr: u32,
    }

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
