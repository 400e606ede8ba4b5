//! What `stat` says of an inode.

use std::{fmt, num::NonZero};

/// The number by which a format finds an inode.
///
/// EROFS: the node id of the format. SquashFS: the inode reference (metadata block and offset). It is not always the
/// number that `stat` shows; that is [`Attr::inode_number`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Nid(pub u64);

impl fmt::Display for Nid {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// The kind of an inode, as in the upper bits of `st_mode`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum FileType {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A character device.
    CharacterDevice,
    /// A block device.
    BlockDevice,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
}

impl FileType {
    /// The type that the upper bits of `mode` name (`S_IFMT`), or `None` if they name none.
    pub const fn from_mode(mode: u16) -> Option<Self> {
        Some(match mode & 0o170_000 {
            0o100_000 => Self::Regular,
            0o040_000 => Self::Directory,
            0o120_000 => Self::Symlink,
            0o020_000 => Self::CharacterDevice,
            0o060_000 => Self::BlockDevice,
            0o010_000 => Self::Fifo,
            0o140_000 => Self::Socket,
            _ => return None,
        })
    }

    /// The `S_IFMT` bits of this type.
    pub const fn mode_bits(self) -> u16 {
        match self {
            Self::Regular => 0o100_000,
            Self::Directory => 0o040_000,
            Self::Symlink => 0o120_000,
            Self::CharacterDevice => 0o020_000,
            Self::BlockDevice => 0o060_000,
            Self::Fifo => 0o010_000,
            Self::Socket => 0o140_000,
        }
    }

    /// The letter that `find -printf %y` prints: f d l c b p s.
    pub const fn letter(self) -> char {
        match self {
            Self::Regular => 'f',
            Self::Directory => 'd',
            Self::Symlink => 'l',
            Self::CharacterDevice => 'c',
            Self::BlockDevice => 'b',
            Self::Fifo => 'p',
            Self::Socket => 's',
        }
    }

    /// The letter that `ls -l` begins its mode column with: - d l c b p s.
    pub const fn mode_letter(self) -> char {
        match self {
            Self::Regular => '-',
            other => other.letter(),
        }
    }
}

/// A point in time, as seconds and nanoseconds since 1970-01-01 UTC.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Timestamp {
    /// Whole seconds; before 1970 they are negative.
    pub seconds: i64,
    /// Nanoseconds past the second, below 1,000,000,000.
    pub nanoseconds: u32,
}

/// The numbers of a device special file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct DeviceNumber {
    /// The driver.
    pub major: u32,
    /// The device of that driver.
    pub minor: u32,
}

impl DeviceNumber {
    /// The numbers in `encoded`, which is in the kernel's 32-bit form for disks and for FUSE (`new_encode_dev`): minor
    /// bits 0–7, major 12 bits, minor bits 8–19.
    pub const fn from_encoded(encoded: u32) -> Self {
        Self { major: (encoded & 0x000f_ff00) >> 8, minor: (encoded & 0xff) | ((encoded >> 12) & 0x000f_ff00) }
    }

    /// The kernel's 32-bit form (`new_encode_dev`); the inverse of [`DeviceNumber::from_encoded`].
    pub const fn encoded(self) -> u32 {
        (self.minor & 0xff) | ((self.major & 0xfff) << 8) | ((self.minor & 0x000f_ff00) << 12)
    }
}

/// What `stat` says of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attr {
    /// The inode this describes.
    pub nid: Nid,
    /// The number that the kernel's mount of the same image shows as `st_ino`.
    pub inode_number: u64,
    /// The kind of the inode.
    pub file_type: FileType,
    /// The twelve permission bits.
    pub permissions: u16,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The size in bytes, as `st_size`.
    pub size: u64,
    /// The number of hard links.
    pub link_count: u32,
    /// The time of the last change of the content. The access and change times are the same.
    pub modified: Timestamp,
    /// The device numbers; zero for what is not a device.
    pub device: DeviceNumber,
    /// What the inode takes on the image, in 512-byte units, as `st_blocks`.
    pub blocks_512: u64,
}

impl Attr {
    /// Type and permissions together, as `st_mode`.
    pub const fn mode(&self) -> u16 {
        self.file_type.mode_bits() | self.permissions
    }
}

/// What can be said of an inode without its data, its attributes and its entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outline {
    /// What `stat` says.
    pub attr: Attr,
    /// Whether the inode may have extended attributes. `false` is certain.
    pub may_have_xattrs: bool,
    /// A power of two at whose multiples all holes of a regular file begin and end, or at the end of the file; `None` where
    /// it certainly has no holes.
    pub hole_alignment: Option<NonZero<u64>>,
    /// The block size of a directory that consists of blocks: cursors are byte positions, each block can be read without
    /// the others, `.` and `..` stand among the other entries, and the last block ends with [`Attr::size`].
    pub directory_block: Option<NonZero<u64>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_name_their_types_and_back() {
        for letter in "fdlcbps".chars() {
            let found =
                (0..16u16).filter_map(|bits| FileType::from_mode(bits << 12)).find(|kind| kind.letter() == letter);
            let kind = found.expect("each letter has a type");
            assert_eq!(FileType::from_mode(kind.mode_bits() | 0o7777), Some(kind));
        }
        assert_eq!(FileType::from_mode(0o150_000), None);
    }

    #[test]
    fn device_numbers_survive_the_kernels_form() {
        for (major, minor) in [(0, 0), (1, 3), (8, 255), (8, 256), (4095, 0xf_ffff), (259, 70_000)] {
            let number = DeviceNumber { major, minor };
            assert_eq!(DeviceNumber::from_encoded(number.encoded()), number);
        }
        assert_eq!(DeviceNumber { major: 1, minor: 3 }.encoded(), 0x103);
    }
}
