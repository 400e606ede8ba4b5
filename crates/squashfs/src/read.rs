//! The reader: parses an image, from the superblock to the extents of files.

mod block_index;
mod block_list;
mod compressor;
mod directory;
mod extents;
mod file_system;
mod inode;
mod location_list;
mod metadata;
mod parent;
mod squashfs;
mod superblock;
mod xattr;

pub(crate) use block_list::SizeWord;
pub use compressor::{Compression, CompressorOptions};
pub(crate) use directory::{ListedInode, ListingPosition, Name};
pub(crate) use inode::{DirectoryInode, Inode, InodeData, RegularInode};
pub(crate) use location_list::LocationList;
pub(crate) use metadata::{MetadataPosition, TableRange};
pub use squashfs::Squashfs;
pub use superblock::{Flags, Superblock};
pub(crate) use xattr::{XattrBytes, XattrPrefix};
