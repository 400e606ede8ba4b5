//! Building EROFS images.
//!
//! [`build()`] takes [`Options`] and sources, directories and tar archives, scans them into a tree, compresses what is in the files on several threads,
//! lays out the metadata and writes the image under its name when it is whole. The same input and options give the same
//! bytes, however many threads there are.
//!
//! An image has three parts: the superblock's block; the data, in the order of the tree, then the packed inode's; the
//! metadata, which is shared attributes, inodes with what stands behind them, and the blocks of directories. A
//! directory's inodes stand together. Places that blocks leave free are filled with later, smaller inodes.
//!
//! Besides equal files, equal pclusters and the equal ends of files are stored once, and with [`Options::dedupe`] what
//! files have in common at any place. Content is cut into grains where its own bytes say so; equal grains in a row are a
//! repeat. An extent can only refer to the beginning of a pcluster, so pclusters begin where something begins that is
//! repeated later. All repeats are known before anything is compressed, so that this too is done on several threads.
//!
//! Fragments of files with the same extension stand side by side within runs of a segment's length, because they compress
//! better so; with large pclusters they stay in the order of the tree.
//!
//! What makes the order the same for any number of threads: files are cut into segments of a fixed size, each is
//! compressed by itself, and one thread takes the results in order and decides what is stored where.
#![forbid(unsafe_code)]

mod allocation;
mod archive;
mod assembly;
mod build;
mod changed;
mod chunks;
mod compressors;
mod content;
mod data;
mod duplicates;
mod error;
mod excludes;
mod expected;
mod grains;
mod hints;
mod image_file;
mod kinds;
mod launch;
mod layout;
mod memory;
mod metadata;
mod options;
mod overlay;
mod packed;
mod parting;
mod piece;
mod planned_inode;
mod profile;
mod progress;
mod repeats;
mod replaced_file;
mod scan;
mod segment;
mod shared_extents;
mod source_root;
mod stored_blocks;
mod stored_contents;
mod stored_file;
mod summary;
mod treatment;
mod tree;
mod whiteout;
mod workers;
mod xattrs;

pub use build::{build, build_verified};
pub use error::Error;
pub use expected::{Expected, ExpectedInode, PieceDigest, Verified, Verifier, VerifyError};
pub use floe_codec::encode::{Compression, LZ4_WINDOW_MAX, LZMA_DICTIONARY_USUAL_MAX};
pub use floe_erofs::write::InodeForm;
pub use hints::{Coding, Hint};
pub use image_file::remove_unfinished;
pub use layout::{Layout, Metabox};
pub use options::{Fragments, Options, Ownership, Source, Times, Whiteouts, Xattrs};
pub use overlay::OverlayMarks;
pub use profile::{Profile, ProfileRange};
pub use progress::{NoProgress, Phase, Progress};
pub use summary::Summary;
