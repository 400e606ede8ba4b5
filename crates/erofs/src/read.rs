//! The reader: parses an image, from the superblock to the extents of files.

mod algorithms;
mod block_size;
pub mod check;
mod chunks;
mod compact_index;
mod compressed;
mod content;
mod device_table;
mod directory;
pub mod dump;
mod encoded_extents;
mod erofs;
mod features;
mod flat;
mod full_index;
mod inode;
mod launch_list;
mod lcluster;
mod length_sums;
mod map;
mod metabox_source;
mod pcluster;
mod piece;
mod plain;
mod posix_acl;
mod superblock;
mod volume;
mod window;
mod xattr;
mod xattr_prefixes;

pub use device_table::{DeviceSlot, extra_devices};
pub use erofs::Erofs;
pub use superblock::SuperblockChecksum;
