//! Inode attributes, as `stat` reports them.

use std::{fmt, num::NonZero};

/// The number that identifies an inode within a format.
///
/// EROFS: the nid. SquashFS: the inode reference (metadata block and offset). `stat` may show another number:
/// [`Attr::inode_number`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Nid(pub u64);

impl fmt::Display for Nid {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// The type of an inode, as in the upper bits of `st_mode`.
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
    /// The file type encoded in the upper bits of `mode` (`S_IFMT`), or `None` if they encode no known type.
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

    /// The first letter of the mode column of `ls -l`: - d l c b p s.
    pub const fn mode_letter(self) -> char {
        match self {
            Self::Regular => '-',
            other => other.letter(),
        }
    }
}

/// A point in time: seconds and nanoseconds since 1970-01-01 UTC.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Timestamp {
    /// Whole seconds; negative before 1970.
    pub seconds: i64,
    /// Nanoseconds past the second, below 1,000,000,000.
    pub nanoseconds: u32,
}

/// The numbers of a device special file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct DeviceNumber {
    /// The major number, which identifies the driver.
    pub major: u32,
    /// The minor number, which identifies the device of that driver.
    pub minor: u32,
}

impl DeviceNumber {
    /// Decodes the kernel's 32-bit form (`new_encode_dev`), which disk formats and FUSE use: minor bits 0–7, major 12
    /// bits, minor bits 8–19.
    pub const fn from_encoded(encoded: u32) -> Self {
        Self { major: (encoded & 0x000f_ff00) >> 8, minor: (encoded & 0xff) | ((encoded >> 12) & 0x000f_ff00) }
    }

    /// Encodes the numbers in the kernel's 32-bit form (`new_encode_dev`); the inverse of
    /// [`DeviceNumber::from_encoded`].
    pub const fn encoded(self) -> u32 {
        (self.minor & 0xff) | ((self.major & 0xfff) << 8) | ((self.minor & 0x000f_ff00) << 12)
    }
}

/// The attributes of an inode, as `stat` reports them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attr {
    /// The inode.
    pub nid: Nid,
    /// The number that the kernel's mount of the same image shows as `st_ino`.
    pub inode_number: u64,
    /// The type of the inode.
    pub file_type: FileType,
    /// The permission bits, including set-user-id, set-group-id and sticky: twelve bits.
    pub permissions: u16,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The size in bytes, as `st_size`.
    pub size: u64,
    /// The number of hard links.
    pub link_count: u32,
    /// The time of the last modification. Access and change times equal it.
    pub modified: Timestamp,
    /// The device numbers; zero unless the inode is a device.
    pub device: DeviceNumber,
    /// The space of the inode in the image, in units of 512 bytes, as `st_blocks`.
    pub blocks_512: u64,
}

impl Attr {
    /// Type and permissions together, as `st_mode`.
    pub const fn mode(&self) -> u16 {
        self.file_type.mode_bits() | self.permissions
    }
}

/// Properties of an inode that can be computed without reading its data or its directory entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outline {
    /// The attributes.
    pub attr: Attr,
    /// Whether the inode may have extended attributes; `false` means that it has none.
    pub may_have_xattrs: bool,
    /// The alignment of holes in a regular file, a power of two: all holes begin and end at its multiples, or end at
    /// the end of the file. `None` if the file certainly has no holes.
    pub hole_alignment: Option<NonZero<u64>>,
    /// The block size of a directory that consists of blocks: cursors are byte positions, each block can be read
    /// independently, `.` and `..` are ordered among the other entries, and the last block ends at [`Attr::size`].
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
