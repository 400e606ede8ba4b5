//! What a build made.

use std::time::Duration;

use crate::expected::Verified;

/// What a build made. Sizes are in bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Summary {
    /// How many inodes there are, the packed one among them.
    pub inodes: u64,
    /// How many of them are regular files.
    pub files: u64,
    /// How many are directories.
    pub directories: u64,
    /// The content of all files, each inode counted once.
    pub content_bytes: u64,
    /// What of it was found to be there already.
    pub duplicate_bytes: u64,
    /// What went into the packed inode.
    pub packed_bytes: u64,
    /// The blocks of data: pclusters, and what is not compressed.
    pub data_bytes: u64,
    /// The metadata: inodes, indexes, directories, xattrs, what is inline.
    pub metadata_bytes: u64,
    /// The image.
    pub image_bytes: u64,
    /// The blob device, where there is one.
    pub blob_bytes: u64,
    /// The volume's UUID.
    pub uuid: [u8; 16],
    /// Attributes that were left out because the format has no place for them: how many.
    pub xattrs_left_out: u64,
    /// Whether the image, as it was before, lies in a source and was left out.
    pub output_left_out: bool,
    /// How long listing the sources took.
    pub scan_time: Duration,
    /// How long reading and compressing took.
    pub data_time: Duration,
    /// How many ranges of the profile are of files that the image does not have.
    pub profile_missing: u64,
    /// What was read back; `None` where nothing was.
    pub verified: Option<Verified>,
    /// How long reading back took.
    pub verify_time: Duration,
    /// How long all took.
    pub total_time: Duration,
}
