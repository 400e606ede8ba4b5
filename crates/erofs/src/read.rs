//! The reader: parses an image, from the superblock to the extents of files.

pub mod check;
mod content;
mod device_table;
mod directory;
pub mod dump;
mod erofs;
mod inode;
mod launch_list;
mod layout;
mod length_sums;
mod map;
mod parameters;
mod superblock;
mod volume;
mod window;
mod xattr;
mod xattr_prefixes;

pub use device_table::{DeviceSlot, extra_devices};
pub use erofs::Erofs;
pub use superblock::SuperblockChecksum;
