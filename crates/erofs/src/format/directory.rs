//! Directories (docs/format/erofs.md, Directories).

use super::raw_structs;

/// The longest name, in bytes.
pub const NAME_LEN: usize = 255;
/// The bit of a nid that says: this inode is inside the metabox.
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
    /// An entry of a directory. Names follow all entries of a block; a name ends where the next one begins, the last
    /// at a zero byte or with the block.
    pub struct Dirent: 12 {
        /// The inode it names.
        pub nid: u64,
        /// Where its name begins, in bytes from the beginning of the block.
        pub nameoff: u16,
        /// An `FT_` number.
        pub file_type: u8,
        /// Zero.
        pub reserved: u8,
    }
}
