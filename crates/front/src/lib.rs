//! An image as a virtual EROFS image that the kernel mounts.
//!
//! [`VirtualImage`] shows the tree of any image as one file in the EROFS format, uncompressed. The file does not exist: its
//! metadata is rendered when it is read, and its file data is the original's. The kernel's EROFS mounts that file. It then
//! answers names, attributes and whatever is in its caches itself, and parses nothing but what was rendered here.
//!
//! # Layout
//!
//! Blocks have 4 KiB. Addresses of data are below 8 TiB − 16 MiB; the metadata area follows, with 64-bit inode numbers.
//!
//! | bytes | what |
//! | --- | --- |
//! | block 0 | the superblock: label, UUID, time, number of inodes and size of the original; checksum; feature CHUNKED_FILE alone |
//! | blocks 128 to 255 | what stands for directories and data that cannot be read |
//! | from block 256 on | data: a run of blocks for each file, directory or long symbolic link that has no room elsewhere |
//! | block 0x7ffff000 | the metadata area: one area after the other, as below |
//!
//! | area | bytes for each inode | which inodes |
//! | --- | --- | --- |
//! | root | 8 MiB | the root: nid 36 |
//! | broken file | 4096 | one inode for all that cannot be read |
//! | dense | 64 | files up to 16 MiB, devices, fifos and sockets, without attributes |
//! | medium | 256 | the same with attributes that fit; symbolic links that fit |
//! | page | 4096 | directories, small ones with their entries behind the inode; larger files; short maps of files with holes |
//! | broken directory | 64 | directories that cannot be read, by their own numbers |
//! | huge | 8 MiB | what has more behind the inode: attributes up to 256 KiB, maps of up to two million chunks |
//!
//! In each area an inode stands at its original inode number ([`floe_image::Attr::inode_number`]) times the bytes for each.
//! So a nid follows from the original alone. It is the same in each mount, no table of inodes is kept, and opening an image
//! reads its root and nothing else. `st_ino` is the virtual nid: twice the original's number for a plain file.
//!
//! Inodes are extended ones. All attributes stand behind the inode. Files are flat and plain; files with holes are in chunks,
//! as large as the alignment of the holes. Names have the order of their bytes: where the original has directory blocks of 4 KiB
//! with both dots, a virtual block has the same names, and the directory has the original's size. Other directories are packed
//! anew; the index of their blocks takes 8 bytes for each.
//!
//! # Addresses of data
//!
//! Data gets its addresses when the metadata block that names it is first rendered, for good. The table of them only grows: 8
//! bytes for each run, and some 40 for each metadata block that names one. What has no addresses yet cannot be read: a page of
//! it would stay in the kernel's page cache as it was. An image whose data needs more than 8 TiB of addresses has files
//! that cannot be read. EROFS has 48-bit addresses since Linux 6.15, but mounts from files since 6.12; no image has needed them.
//!
//! A metadata block is a function of the original and of those addresses, so it is the same whenever it is rendered. It
//! also has slots of inodes that no directory names, whose bytes may be anything in an EROFS original. They are rendered
//! alike, and nothing reads them; a limit on the files that share blocks bounds the addresses they can waste.
//!
//! # Originals that break their format
//!
//! The kernel writes a line to its log when it reads an inode or a directory block that cannot be read or breaks the format.
//! So neither is rendered where the fault is the original's, and programs get `EIO` from something else:
//!
//! - An inode that cannot be read is the broken file: mode 0, and reads fail.
//! - Attributes that cannot be read stand in a block of their own that cannot be read.
//! - A directory that cannot be read has three blocks. A listing begins in the first, whose only name has a slash, for which
//!   the kernel's `getdents` gives `EIO`. A lookup begins in the second, which cannot be read.
//! - Where only a later block is broken, the block before it ends with such a name, and that block cannot be read.
//! - A directory in a directory that is not its parent is broken, so there are no cycles.
//!
//! What may succeed later, such as a read of the source that failed, fails the read of the block.
#![forbid(unsafe_code)]

mod addresses;
mod directory;
mod geometry;
mod metadata_readahead;
mod node;
mod packed_directories;
mod render;
mod rendered_source;
mod view;
mod virtual_image;

pub use virtual_image::{FrontPart, Origin, VirtualImage};
