//! The launch list: the file ranges that a recorded launch reads, in order (docs/format/erofs.md, Launch list). It is
//! an extension of Floe.

use super::raw_structs;

/// The magic number of a launch list.
pub const LAUNCH_LIST_MAGIC: [u8; 8] = *b"FloeLnch";
/// The known version.
pub const LAUNCH_LIST_VERSION: u32 = 1;
/// The maximum number of records.
pub const LAUNCH_LIST_COUNT_MAX: u32 = 65_536;

/// The magic number of the launch profile that may follow a launch list.
pub const LAUNCH_PROFILE_MAGIC: [u8; 8] = *b"FloeProf";
/// The maximum length of the text of a launch profile in an image, in bytes.
pub const LAUNCH_PROFILE_BYTES_MAX: u32 = 4 << 20;

raw_structs! {
    /// The header of a launch list.
    pub struct LaunchListHeader: 24 {
        /// [`LAUNCH_LIST_MAGIC`].
        pub magic: [u8; 8],
        /// [`LAUNCH_LIST_VERSION`].
        pub version: u32,
        /// The number of records that follow.
        pub count: u32,
        /// The crc32c of the records.
        pub checksum: u32,
        /// Always 0.
        pub reserved: u32,
    }

    /// A range of file bytes that the launch reads.
    pub struct LaunchRecord: 24 {
        /// The inode.
        pub nid: u64,
        /// The offset in the file.
        pub offset: u64,
        /// The length in bytes.
        pub len: u64,
    }

    /// The header of a launch profile, which follows the records of a launch list.
    pub struct LaunchProfileHeader: 16 {
        /// [`LAUNCH_PROFILE_MAGIC`].
        pub magic: [u8; 8],
        /// The length of the text that follows, in bytes.
        pub len: u32,
        /// The crc32c of the text.
        pub checksum: u32,
    }
}
