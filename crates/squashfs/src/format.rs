//! The on-disk structures: raw, little-endian, with their sizes checked at compile time.
//!
//! Names are those of the specification without their prefix. Nothing here checks values; the reader does.

mod inode;
mod superblock;

pub use inode::*;
pub use superblock::*;

/// The first four bytes of a superblock, as a number: "hsqs".
pub const MAGIC: u32 = 0x7371_7368;
/// The magic number of a big-endian image (before version 4): "sqsh".
pub const MAGIC_SWAPPED: u32 = 0x6873_7173;
/// Replaces the superblock if the real one is at the end of the image (`-stream`): "HSQS".
pub const MAGIC_STREAMED: u32 = 0x5351_5348;
/// The supported major version.
pub const MAJOR: u16 = 4;
/// The supported minor version.
pub const MINOR: u16 = 0;

/// The size of a superblock in bytes.
pub const SUPERBLOCK_BYTES: u64 = 96;
/// The decoded length of a metadata block; the last block of a table may be shorter.
pub const METADATA_BYTES: u32 = 8192;
/// The maximum number of dirents under one header.
pub const DIRECTORY_HEADER_ENTRIES_MAX: u32 = 256;
/// The longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 256;
/// Added to the length of the listing in a directory's stored size: 1 for `.` and 2 for `..`, which the listing omits.
pub const DIRECTORY_SIZE_EXTRA: u32 = 3;

/// The position of an absent table.
pub const ABSENT_TABLE: u64 = u64::MAX;
/// The fragment index of a file without a fragment.
pub const ABSENT_FRAGMENT: u32 = u32::MAX;
/// The attribute set of an inode without attributes.
pub const ABSENT_XATTRS: u32 = u32::MAX;

/// Set in the size word of an uncompressed data or fragment block.
pub const BLOCK_UNCOMPRESSED: u32 = 1 << 24;
/// The largest valid size word.
pub const BLOCK_WORD_MAX: u32 = (1 << 25) - 1;

/// Inode metadata is uncompressed.
pub const FLAG_UNCOMPRESSED_INODES: u16 = 1 << 0;
/// Data blocks are uncompressed.
pub const FLAG_UNCOMPRESSED_DATA: u16 = 1 << 1;
/// A check table exists (versions before 4).
pub const FLAG_CHECK: u16 = 1 << 2;
/// Fragment blocks are uncompressed.
pub const FLAG_UNCOMPRESSED_FRAGMENTS: u16 = 1 << 3;
/// No fragments exist.
pub const FLAG_NO_FRAGMENTS: u16 = 1 << 4;
/// Tail ends of large files are stored in fragments too.
pub const FLAG_ALWAYS_FRAGMENTS: u16 = 1 << 5;
/// Equal files are stored once.
pub const FLAG_DUPLICATES: u16 = 1 << 6;
/// An export table exists.
pub const FLAG_EXPORTABLE: u16 = 1 << 7;
/// Attributes are uncompressed.
pub const FLAG_UNCOMPRESSED_XATTRS: u16 = 1 << 8;
/// No attributes exist.
pub const FLAG_NO_XATTRS: u16 = 1 << 9;
/// The compressor's options follow the superblock.
pub const FLAG_COMPRESSOR_OPTIONS: u16 = 1 << 10;
/// Ids are uncompressed.
pub const FLAG_UNCOMPRESSED_IDS: u16 = 1 << 11;

/// Inode and dirent type: a directory.
pub const DIR_TYPE: u16 = 1;
/// Inode and dirent type: a regular file.
pub const REG_TYPE: u16 = 2;
/// Inode and dirent type: a symbolic link.
pub const SYMLINK_TYPE: u16 = 3;
/// Inode and dirent type: a block device.
pub const BLKDEV_TYPE: u16 = 4;
/// Inode and dirent type: a character device.
pub const CHRDEV_TYPE: u16 = 5;
/// Inode and dirent type: a named pipe.
pub const FIFO_TYPE: u16 = 6;
/// Inode and dirent type: a socket.
pub const SOCKET_TYPE: u16 = 7;
/// Inode type: an extended directory. Extended types are 7 above the basic ones; dirents never have them.
pub const LDIR_TYPE: u16 = 8;
/// Inode type: an extended regular file.
pub const LREG_TYPE: u16 = 9;
/// Inode type: an extended symbolic link.
pub const LSYMLINK_TYPE: u16 = 10;
/// Inode type: an extended block device.
pub const LBLKDEV_TYPE: u16 = 11;
/// Inode type: an extended character device.
pub const LCHRDEV_TYPE: u16 = 12;
/// Inode type: an extended named pipe.
pub const LFIFO_TYPE: u16 = 13;
/// Inode type: an extended socket.
pub const LSOCKET_TYPE: u16 = 14;

/// The bits of an attribute's type that hold the prefix of its name.
pub const XATTR_PREFIX_MASK: u16 = 0xff;
/// Set in an attribute's type if the value is stored out of line.
pub const XATTR_VALUE_OUT_OF_LINE: u16 = 0x100;

/// A number inside a raw structure.
trait Field: Sized {
    const SIZE: usize;

    fn take(bytes: &mut &[u8]) -> Option<Self>;

    fn put(&self, bytes: &mut Vec<u8>);
}

macro_rules! fields {
    ($($integer:ty),*) => {$(
        impl Field for $integer {
            const SIZE: usize = size_of::<$integer>();

            fn take(bytes: &mut &[u8]) -> Option<Self> {
                let (head, rest) = bytes.split_first_chunk()?;
                *bytes = rest;
                Some(Self::from_le_bytes(*head))
            }

            fn put(&self, bytes: &mut Vec<u8>) {
                bytes.extend_from_slice(&self.to_le_bytes());
            }
        }
    )*};
}
fields!(u16, i16, u32, i32, u64);

/// Declares raw structures: `name: size in bytes { fields in order }`.
macro_rules! raw_structs {
    ($($(#[$attribute:meta])* pub struct $name:ident: $size:literal {
        $($(#[$field_attribute:meta])* pub $field:ident: $kind:ty,)*
    })*) => {$(
        $(#[$attribute])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct $name {
            $($(#[$field_attribute])* pub $field: $kind,)*
        }

        impl $name {
            /// The size in the image, in bytes.
            pub const SIZE: usize = $size;

            /// The fields in order: name and size in bytes of each.
            pub const FIELDS: &'static [(&'static str, usize)] =
                &[$((stringify!($field), <$kind as Field>::SIZE),)*];

            /// Reads the structure from the front of `bytes`; `None` if `bytes` is too short.
            pub fn from_prefix(bytes: &[u8]) -> Option<Self> {
                let mut rest = bytes;
                Some(Self { $($field: Field::take(&mut rest)?,)* })
            }

            /// The on-disk form of the structure.
            pub fn to_bytes(self) -> Vec<u8> {
                let mut bytes = Vec::new();
                $(self.$field.put(&mut bytes);)*
                bytes
            }
        }

        impl Raw for $name {
            const SIZE: usize = $size;

            fn from_prefix(bytes: &[u8]) -> Option<Self> {
                Self::from_prefix(bytes)
            }
        }

        const _: () = assert!(0 $(+ <$kind as Field>::SIZE)* == $size);
    )*};
}

/// A raw structure.
pub(crate) trait Raw: Sized {
    /// The size in the image, in bytes; at most 96.
    const SIZE: usize;

    /// Reads the structure from the front of `bytes`; `None` if `bytes` is too short.
    fn from_prefix(bytes: &[u8]) -> Option<Self>;
}
use raw_structs;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_survive_a_round_trip() {
        let bytes: Vec<u8> = (0..96).collect();
        assert_eq!(SuperBlock::from_prefix(&bytes).map(SuperBlock::to_bytes), Some(bytes.clone()));
        assert_eq!(SuperBlock::from_prefix(&bytes[..95]), None);
        assert_eq!(LRegInode::from_prefix(&bytes).map(LRegInode::to_bytes), Some(bytes[..40].to_vec()));
        let entry = DirEntry { offset: 0x1234, inode_number: -2, kind: 7, size: 255 };
        assert_eq!(entry.to_bytes(), [0x34, 0x12, 0xfe, 0xff, 7, 0, 255, 0]);
        assert_eq!(DirEntry::from_prefix(&entry.to_bytes()), Some(entry));
    }
}
