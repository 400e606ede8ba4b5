//! Attributes in the form that replies carry.

use std::time::{Duration, SystemTime};

use floe_image::{Attr, FileType, Timestamp};
use fuser::{FileAttr, INodeNo};

/// How attributes of the image are shown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttributeView {
    /// What `st_blksize` says, in bytes.
    pub(crate) block_size: u32,
    /// The owner of everything, in place of the image's.
    pub(crate) uid: Option<u32>,
    /// The group of everything, in place of the image's.
    pub(crate) gid: Option<u32>,
}

impl AttributeView {
    /// The attributes of an inode. `number` is both its node number and, where the reply has no other field for it, its
    /// inode number.
    pub(crate) fn file_attr(&self, attr: &Attr, number: u64) -> FileAttr {
        let modified = system_time(attr.modified);
        FileAttr {
            ino: INodeNo(number),
            size: attr.size,
            blocks: attr.blocks_512,
            atime: modified,
            mtime: modified,
            ctime: modified,
            crtime: modified,
            kind: kind(attr.file_type),
            perm: attr.permissions,
            nlink: attr.link_count,
            uid: self.uid.unwrap_or(attr.uid),
            gid: self.gid.unwrap_or(attr.gid),
            rdev: attr.device.encoded(),
            blksize: self.block_size,
            flags: 0,
        }
    }

    /// Attributes that say nothing, with a number and a type.
    pub(crate) fn blank(&self, number: u64, file_type: FileType) -> FileAttr {
        FileAttr {
            ino: INodeNo(number),
            size: 0,
            blocks: 0,
            atime: SystemTime::UNIX_EPOCH,
            mtime: SystemTime::UNIX_EPOCH,
            ctime: SystemTime::UNIX_EPOCH,
            crtime: SystemTime::UNIX_EPOCH,
            kind: kind(file_type),
            perm: 0,
            nlink: 0,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: self.block_size,
            flags: 0,
        }
    }
}

/// The type in the words of the FUSE crate.
pub(crate) fn kind(file_type: FileType) -> fuser::FileType {
    match file_type {
        FileType::Regular => fuser::FileType::RegularFile,
        FileType::Directory => fuser::FileType::Directory,
        FileType::Symlink => fuser::FileType::Symlink,
        FileType::CharacterDevice => fuser::FileType::CharDevice,
        FileType::BlockDevice => fuser::FileType::BlockDevice,
        FileType::Fifo => fuser::FileType::NamedPipe,
        FileType::Socket => fuser::FileType::Socket,
    }
}

/// The time; one that the machine cannot express becomes the epoch.
fn system_time(time: Timestamp) -> SystemTime {
    let seconds = Duration::from_secs(time.seconds.unsigned_abs());
    let whole = match time.seconds {
        0.. => SystemTime::UNIX_EPOCH.checked_add(seconds),
        _ => SystemTime::UNIX_EPOCH.checked_sub(seconds),
    };
    whole
        .and_then(|whole| whole.checked_add(Duration::from_nanos(u64::from(time.nanoseconds))))
        .unwrap_or(SystemTime::UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_timestamp_has_a_time() {
        let epoch = SystemTime::UNIX_EPOCH;
        for (seconds, nanoseconds, expected) in [
            (0, 0, epoch),
            (5, 7, epoch + Duration::new(5, 7)),
            (-2, 800_000_000, epoch - Duration::from_millis(1200)),
            (i64::MAX, 999_999_999, epoch + Duration::new(i64::MAX as u64, 999_999_999)),
            (i64::MIN, 0, epoch - Duration::from_secs(1 << 63)),
            (i64::MAX, u32::MAX, epoch),
        ] {
            assert_eq!(system_time(Timestamp { seconds, nanoseconds }), expected, "{seconds} {nanoseconds}");
        }
    }
}
