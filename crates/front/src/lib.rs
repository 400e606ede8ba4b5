//! Shows an image of any format as a virtual EROFS image that the kernel mounts.
//!
//! [`VirtualImage`] shows the tree of any image as one file in the EROFS format, uncompressed. No disk contains this
//! file: reads of its metadata render it, and its file data is the original's. The kernel's EROFS mounts that file. It
//! then answers lookups, attributes and cached reads itself, and parses only metadata that this crate rendered.
//!
//! # Layout
//!
//! Blocks have 4 KiB. Addresses of data are below 7 TiB, those of listings below 8 TiB − 16 MiB; the metadata area follows,
//! with 64-bit inode numbers.
//!
//! | bytes | what |
//! | --- | --- |
//! | block 0 | the superblock: label, UUID, time, number of inodes and size of the original; checksum; features CHUNKED_FILE and DEVICE_TABLE alone |
//! | blocks 128 to 255 | placeholders for directories and data that cannot be read |
//! | from block 256 on | data: a run of blocks for each small file |
//! | from block 0x70000000 on | a run of blocks for each directory or long symbolic link that does not fit behind its inode |
//! | from block 0x7ffff000 on | the metadata area, which consists of the areas below, in this order |
//!
//! | area | bytes per inode | inodes |
//! | --- | --- | --- |
//! | root | 8 MiB | the root: nid 36 |
//! | broken file | 4096 | one placeholder for all inodes that cannot be read |
//! | dense | 64 | files below 128 KiB, devices, fifos and sockets, without extended attributes |
//! | medium | 256 | the same with extended attributes that fit; files up to 16 MiB; symbolic links that fit |
//! | page | 4096 | directories (small ones with their entries behind the inode), larger files, files with holes and a short chunk map |
//! | broken directory | 64 | directories that cannot be read, by their own numbers |
//! | huge | 8 MiB | inodes with more data behind them: extended attributes up to 256 KiB, maps of up to two million chunks |
//! | misnumbered | 8192 | inodes that are not found by their numbers; their attributes have at most 4032 bytes |
//! | broken misnumbered directory | 64 | those of them that are directories and cannot be read |
//!
//! The offset of an inode in its area is its original inode number ([`floe_image::Attr::inode_number`]) times the bytes per
//! inode. So a nid depends on the original alone: it is the same in each mount, there is no table of inodes, and opening an
//! image reads only its root. `st_ino` is the virtual nid: twice the original's number for a plain file.
//!
//! An inode number of the original may lead to another inode, or to none: some programs write SquashFS images with a wrong export
//! table, or give several inodes the same number. The offset of such an inode in its area follows from its own nid instead of its
//! number. The kernel then reads and caches a block for each of these inodes.
//!
//! The data of files of at least 128 KiB without holes is in a second file, the *large file*: device 1 of the virtual image, which
//! has no metadata. Its users can read it past the page cache.
//!
//! All inodes are extended inodes with inline attributes. Small files use the layout FLAT_PLAIN. Files on device 1 are
//! chunk-based, with one chunk. Files with holes are chunk-based, with chunks as large as the alignment of the holes.
//!
//! Directory entries are sorted by the bytes of their names. Where the original has directory blocks of 4 KiB with `.` and
//! `..`, each virtual block has the same names, and the directory has the original's size. Other directories are packed anew,
//! which needs an index of 8 bytes per block in memory.
//!
//! # Addresses of data
//!
//! The data of a file gets its addresses when a listing that names the file is rendered for the first time, in the order of the
//! names: programs mostly read files in this order, and the kernel's readahead follows the addresses. Other data gets them when
//! the metadata block that refers to it is rendered for the first time. Data keeps its addresses. The table of addresses only
//! grows: 16 bytes per run, and about 40 per metadata block that refers to data. The kernel's readahead also reads addresses
//! just behind the assigned ones, which belong to no data yet. They are then never assigned, because the kernel's page cache
//! keeps the bytes. Addresses farther behind cannot be read. Once 7 TiB of addresses of a device are assigned, further files
//! cannot be read. 48-bit addresses would need Linux 6.15, whereas file-backed mounts need 6.12; no image has needed more so
//! far.
//!
//! A metadata block is a function of the original, of these addresses, and of the parents of corrupt directories (see
//! below), which do not change either. So each rendering gives the same bytes. A block also has slots for inode numbers
//! that no directory refers to. In an EROFS original, the bytes at such a number can be anything. If they look like an
//! inode, it is rendered and gets addresses, but nothing reads it. A limit on the size of files in shared blocks bounds
//! the addresses that such inodes waste.
//!
//! # Originals that break their format
//!
//! The kernel writes a line to its log for each inode or directory block that cannot be read or breaks the format. To avoid
//! these lines, valid placeholders replace the broken parts of the original, and programs get `EIO` in another way:
//!
//! - An inode that cannot be read becomes the broken file: its mode is 0, and reads fail.
//! - Extended attributes that cannot be read are in a block of their own, and reading that block fails.
//! - A directory that cannot be read has three blocks. A listing begins in the first, whose only name contains a slash; the
//!   kernel's `getdents` answers such a name with `EIO`. A lookup begins in the second, and reading that block fails.
//! - If only a later block of a directory is broken, the block before it ends with such a name, and reading the broken block
//!   fails.
//! - A directory that is listed in several directories belongs to the one whose listing is rendered first, and counts as broken
//!   in the others, so there are no cycles.
//!
//! An error that may be temporary, such as an I/O error of the source, fails the read of the metadata block instead.
#![forbid(unsafe_code)]

mod addresses;
mod descent;
mod directory;
mod fault;
mod geometry;
mod kept;
mod metadata_readahead;
mod node;
mod packed_directories;
mod parents;
mod recent;
mod render;
mod rendered_source;
mod superblock;
mod view;
mod virtual_image;

pub use kept::{
    Algorithms, Identity, ImageFile, KeptImage, KernelRights, NO_GROUP, NotKept, OWNER_ALONE, Pace, UserRules,
    check_soundness, empty_image, keep,
};
pub use virtual_image::{DataInImage, FrontPart, Origin, VirtualImage};
