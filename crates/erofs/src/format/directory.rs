//! Directories (docs/format/erofs.md, Directories).

use super::raw_structs;

/// The longest name, in bytes.
pub const NAME_LEN: usize = 255;
/// The bit of a nid that is set if the inode is inside the metabox.
pub const DIRENT_NID_METABOX_BIT: u32 = 63;
/// The other bits of a nid.
pub const DIRENT_NID_MASK: u64 = (1 << DIRENT_NID_METABOX_BIT) - 1;

/// `file_type`: unknown.
pub const FT_UNKNOWN: u8 = 0;
/// `file_type`: a regular file.
pub const FT_REG_FILE: u8 = 1;
/// `file_type`: a directory.
pub const FT_DIR: u8 = 2;
/// `file_type`: a character device.
pub const FT_CHRDEV: u8 = 3;
/// `file_type`: a block device.
pub const FT_BLKDEV: u8 = 4;
/// `file_type`: a named pipe.
pub const FT_FIFO: u8 = 5;
/// `file_type`: a socket.
pub const FT_SOCK: u8 = 6;
/// `file_type`: a symbolic link.
pub const FT_SYMLINK: u8 = 7;

raw_structs! {
    /// A directory entry. The names follow all entries of a block. A name ends where the next one begins; the last name
    /// ends at a zero byte or at the end of the block.
    pub struct Dirent: 12 {
        /// The inode that the entry refers to.
        pub nid: u64,
        /// The offset of the name within the block, in bytes.
        pub nameoff: u16,
        /// An `FT_` number.
        pub file_type: u8,
        /// Zero.
        pub reserved: u8,
    }
}
