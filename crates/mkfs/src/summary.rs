//! The result of a build.

use std::time::Duration;

use crate::expected::Verified;

/// The result of a build. Sizes are in bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Summary {
    /// The number of inodes, including the packed inode.
    pub inodes: u64,
    /// The number of regular files.
    pub files: u64,
    /// The number of directories.
    pub directories: u64,
    /// The content of all files, each inode counted once.
    pub content_bytes: u64,
    /// The part of it that is stored as duplicates of other data.
    pub duplicate_bytes: u64,
    /// The length of the packed inode.
    pub packed_bytes: u64,
    /// The data blocks: pclusters and uncompressed data.
    pub data_bytes: u64,
    /// The metadata: inodes, indexes, directories, xattrs, inline data.
    pub metadata_bytes: u64,
    /// The length of the image.
    pub image_bytes: u64,
    /// The length of the blob device; 0 without one.
    pub blob_bytes: u64,
    /// The volume's UUID.
    pub uuid: [u8; 16],
    /// The number of xattrs omitted because the format cannot represent them.
    pub xattrs_left_out: u64,
    /// Deviations from the sources, one line each.
    pub warnings: Vec<String>,
    /// The time for listing the sources.
    pub scan_time: Duration,
    /// The time for reading and compressing.
    pub data_time: Duration,
    /// The number of ranges of the profile that refer to files not in the image.
    pub profile_missing: u64,
    /// The extent of the verification; `None` without one.
    pub verified: Option<Verified>,
    /// The time for verification.
    pub verify_time: Duration,
    /// The total time.
    pub total_time: Duration,
}

impl Summary {
    /// How the image differs from the sources and the options, one line each.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = self.warnings.clone();
        match self.xattrs_left_out {
            0 => {}
            1 => notes.push("1 extended attribute was left out: the format cannot store it".to_owned()),
            count => notes.push(format!("{count} extended attributes were left out: the format cannot store them")),
        }
        if self.profile_missing > 0 {
            let count = self.profile_missing;
            notes.push(format!("{count} ranges of the profile belong to files that are not in the image"));
        }
        notes
    }
}
