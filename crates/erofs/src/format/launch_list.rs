//! The list of what a launch reads first (docs/format/erofs.md, Launch list). It is Floe's own.

use super::raw_structs;

/// What a launch list begins with.
pub const LAUNCH_LIST_MAGIC: [u8; 8] = *b"FloeLnch";
/// The version that is known here.
pub const LAUNCH_LIST_VERSION: u32 = 1;
/// The most records of a list.
pub const LAUNCH_LIST_COUNT_MAX: u32 = 65_536;

raw_structs! {
    /// What stands before the records.
    pub struct LaunchListHeader: 24 {
        /// [`LAUNCH_LIST_MAGIC`].
        pub magic: [u8; 8],
        /// [`LAUNCH_LIST_VERSION`].
        pub version: u32,
        /// How many records follow.
        pub count: u32,
        /// crc32c of the records.
        pub checksum: u32,
        /// 0.
        pub reserved: u32,
    }

    /// Bytes of a file that are read.
    pub struct LaunchRecord: 24 {
        /// The inode.
        pub nid: u64,
        /// The first byte.
        pub offset: u64,
        /// How many bytes.
        pub len: u64,
    }
}
