//! The reader.

mod block_index;
mod block_list;
mod compressor;
mod directory;
mod directory_index;
mod extents;
mod file_system;
mod inode;
mod inode_scan;
mod location_list;
mod metadata;
mod parent;
mod seek;
mod squashfs;
mod superblock;
mod xattr;

pub(crate) use block_list::{BlockWord, SizeWord};
pub use compressor::{Compression, CompressorOptions};
pub(crate) use directory::{Listing, Name};
pub(crate) use directory_index::IndexEntries;
pub(crate) use extents::FragmentBlock;
pub(crate) use inode::{DirectoryInode, Inode, InodeData, RegularInode};
pub(crate) use inode_scan::InodeScan;
pub(crate) use metadata::{MetadataPosition, TableRange};
pub use squashfs::Squashfs;
pub use superblock::{Flags, Superblock, is_squashfs};
pub(crate) use xattr::XattrPrefix;
