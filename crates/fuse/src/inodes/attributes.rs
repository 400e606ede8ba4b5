//! Attributes in the form that replies carry.

use floe_fuse_wire::abi::{self, AttrOut, EntryOut};
use floe_image::{Attr, FileType};

/// How attributes of the image are shown, and for how long the kernel may keep them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttributeView {
    /// What `st_blksize` says, in bytes.
    pub(crate) block_size: u32,
    /// The owner of everything, in place of the image's.
    pub(crate) uid: Option<u32>,
    /// The group of everything, in place of the image's.
    pub(crate) gid: Option<u32>,
    /// How long the kernel may keep names and attributes, in seconds.
    pub(crate) keep_s: u64,
}

impl AttributeView {
    /// The reply to a request for the attributes of an inode.
    pub(crate) fn reply(&self, attr: &Attr) -> AttrOut {
        AttrOut { attr_valid: self.keep_s, attr: self.attributes(attr), ..AttrOut::default() }
    }

    /// What the kernel is told of a name, and the inode with this node number behind it.
    pub(crate) fn entry(&self, attr: &Attr, node: u64) -> EntryOut {
        EntryOut {
            nodeid: node,
            entry_valid: self.keep_s,
            attr_valid: self.keep_s,
            attr: self.attributes(attr),
            ..EntryOut::default()
        }
    }

    /// What the kernel is told of a name that there is not. Node 0 says so and for how long; `ENOENT` would not be kept.
    pub(crate) fn nothing(&self) -> EntryOut {
        EntryOut { entry_valid: self.keep_s, ..EntryOut::default() }
    }

    fn attributes(&self, attr: &Attr) -> abi::Attr {
        // The kernel takes the bits for a number with a sign, and nanoseconds of a second or more for the last of it.
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

/// The type as the upper bits of a mode say it (`DT_*`).
pub(crate) fn kind(file_type: FileType) -> u32 {
    u32::from(file_type.mode_bits()) >> 12
}
