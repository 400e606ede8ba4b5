//! The structures of the C interface.

use std::ffi::{c_char, c_void};

use floe::{Attr, Image};

/// An open image. Opaque.
pub struct floe_image(pub(crate) Image);

/// Options for opening an image. All zero is the default.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct floe_open_options {
    /// The offset of the image in the file, in bytes.
    pub offset: u64,
    /// If not 0, searches for the image in the file, as in an AppImage, and ignores `offset`.
    pub find_offset: i32,
    /// The budget of the cache of decoded blocks, in bytes; 0 chooses it by the memory of the machine.
    pub cache_bytes: u64,
}

/// The attributes of an inode, as `stat` returns them.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct floe_stat {
    /// The inode, for the other functions.
    pub inode: u64,
    /// The inode number that a mount shows as `st_ino`.
    pub inode_number: u64,
    /// The size in bytes.
    pub size: u64,
    /// The space of the inode in the image, in units of 512 bytes.
    pub blocks: u64,
    /// The modification time: seconds since 1970.
    pub mtime_seconds: i64,
    /// The modification time: nanoseconds within the second.
    pub mtime_nanoseconds: u32,
    /// Type and permissions, as `st_mode`.
    pub mode: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The number of hard links.
    pub link_count: u32,
    /// The major number of a device file.
    pub device_major: u32,
    /// The minor number of a device file.
    pub device_minor: u32,
}

impl From<Attr> for floe_stat {
    fn from(attr: Attr) -> Self {
        Self {
            inode: attr.nid.0,
            inode_number: attr.inode_number,
            size: attr.size,
            blocks: attr.blocks_512,
            mtime_seconds: attr.modified.seconds,
            mtime_nanoseconds: attr.modified.nanoseconds,
            mode: u32::from(attr.mode()),
            uid: attr.uid,
            gid: attr.gid,
            link_count: attr.link_count,
            device_major: attr.device.major,
            device_minor: attr.device.minor,
        }
    }
}

/// An entry of a directory. Valid until the callback that receives it returns.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct floe_entry {
    /// The name. Ends with a zero byte, which `name_len` does not count.
    pub name: *const c_char,
    /// The length of the name in bytes.
    pub name_len: usize,
    /// The inode, for the other functions.
    pub inode: u64,
    /// The inode number that a mount shows as `d_ino`.
    pub inode_number: u64,
    /// The type, as in the upper bits of `st_mode` (`S_IFMT`).
    pub type_bits: u32,
}

/// One read of `floe_pread_batch`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct floe_read {
    /// The file.
    pub inode: u64,
    /// The offset of the first byte.
    pub offset: u64,
    /// The destination.
    pub buffer: *mut c_void,
    /// The number of bytes to read.
    pub len: usize,
    /// Set by the call: the number of bytes that were read, or a negative error number.
    pub result: isize,
}
