//! Attributes in the form of FUSE replies.

use floe_fuse_wire::abi::{self, AttrOut, EntryOut};
use floe_image::{Attr, FileType};

/// How attributes of the image are shown, and how long the kernel may cache them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttributeView {
    /// The value of `st_blksize` in bytes.
    pub(crate) block_size: u32,
    /// The owner of all files, instead of the owners in the image.
    pub(crate) uid: Option<u32>,
    /// The group of all files, instead of the groups in the image.
    pub(crate) gid: Option<u32>,
    /// How long the kernel may cache names and attributes, in seconds.
    pub(crate) keep_s: u64,
}

impl AttributeView {
    /// Returns the reply to a request for attributes.
    pub(crate) fn reply(&self, attr: &Attr) -> AttrOut {
        AttrOut { attr_valid: self.keep_s, attr: self.attributes(attr), ..AttrOut::default() }
    }

    /// Returns the entry for a name whose inode has this node number.
    pub(crate) fn entry(&self, attr: &Attr, node: u64) -> EntryOut {
        EntryOut {
            nodeid: node,
            entry_valid: self.keep_s,
            attr_valid: self.keep_s,
            attr: self.attributes(attr),
            ..EntryOut::default()
        }
    }

    /// Returns the negative entry for a name that does not exist. Node 0 makes the kernel cache it; it would not cache
    /// `ENOENT`.
    pub(crate) fn nothing(&self) -> EntryOut {
        EntryOut { entry_valid: self.keep_s, ..EntryOut::default() }
    }

    fn attributes(&self, attr: &Attr) -> abi::Attr {
        // The kernel interprets the seconds as signed. It replaces nanoseconds of a second or more by 999,999,999.
        let (seconds, nanoseconds) = (attr.modified.seconds.cast_unsigned(), attr.modified.nanoseconds);
        abi::Attr {
            ino: attr.inode_number,
            size: attr.size,
            blocks: attr.blocks_512,
            atime: seconds,
            mtime: seconds,
            ctime: seconds,
            atimensec: nanoseconds,
            mtimensec: nanoseconds,
            ctimensec: nanoseconds,
            mode: u32::from(attr.mode()),
            nlink: attr.link_count,
            uid: self.uid.unwrap_or(attr.uid),
            gid: self.gid.unwrap_or(attr.gid),
            rdev: attr.device.encoded(),
            blksize: self.block_size,
            flags: 0,
        }
    }
}

/// The file type as in directory entries (`DT_*`).
pub(crate) fn kind(file_type: FileType) -> u32 {
    u32::from(file_type.mode_bits()) >> 12
}
