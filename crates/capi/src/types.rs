//! The structures of the C interface.

use std::ffi::{c_char, c_void};

use floe::{Attr, Image};

/// An image that is open. Opaque.
pub struct floe_image(pub(crate) Image);

/// How an image is opened. All zero is right for most.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct floe_open_options {
    /// The byte of the file at which the image begins.
    pub offset: u64,
    /// Not 0: look for the image in the file, as in an AppImage; `offset` is then ignored.
    pub find_offset: i32,
    /// The budget of the cache of decoded blocks in bytes; 0: by the memory of the machine.
    pub cache_bytes: u64,
}

/// What `stat` says of an inode.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct floe_stat {
    /// The inode, as the other functions take it.
    pub inode: u64,
    /// The number that a mount shows as `st_ino`.
    pub inode_number: u64,
    /// The size in bytes.
    pub size: u64,
    /// What the inode takes in the image, in units of 512 bytes.
    pub blocks: u64,
    /// The time of the last change: seconds since 1970.
    pub mtime_seconds: i64,
    /// The time of the last change: nanoseconds past the second.
    pub mtime_nanoseconds: u32,
    /// Type and permissions, as `st_mode`.
    pub mode: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The number of hard links.
    pub link_count: u32,
    /// The driver of a device file.
    pub device_major: u32,
    /// The device of that driver.
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

/// An entry of a directory. Valid until the callback that is given it returns.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct floe_entry {
    /// The name. Ends with a zero byte, which `name_len` does not count.
    pub name: *const c_char,
    /// How many bytes the name has.
    pub name_len: usize,
    /// The inode, as the other functions take it.
    pub inode: u64,
    /// The number that a mount shows as `d_ino`.
    pub inode_number: u64,
    /// The type, as in the upper bits of `st_mode` (`S_IFMT`).
    pub type_bits: u32,
}

/// One of many reads.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct floe_read {
    /// The file.
    pub inode: u64,
    /// The first byte to read.
    pub offset: u64,
    /// Where the bytes go.
    pub buffer: *mut c_void,
    /// How many bytes to read.
    pub len: usize,
    /// Set by the call: how many bytes were read, or a negative error number.
    pub result: isize,
}
