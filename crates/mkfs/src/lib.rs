//! Builds EROFS images.
//!
//! [`build()`] takes [`Options`] and sources (directories and tar archives). It scans the sources into a tree,
//! compresses file content on several threads, lays out the metadata, and names the image when it is complete. Equal
//! input and options give equal bytes, whatever the number of threads.
//!
//! An image has three parts: the superblock's block; the data in the order of the tree, followed by the data of the
//! packed inode; and the metadata, which consists of shared xattrs, inodes with their bodies, and directory blocks. The
//! inodes of a directory are adjacent. Later, smaller inodes fill the gaps that block boundaries leave.
//!
//! Equal files, equal pclusters and equal ends of files are stored once. [`Options::dedupe`] also finds equal data at
//! different offsets of files. It splits content into content-defined grains; a sequence of grains that occurred before
//! is a repeat. An extent can only refer to the beginning of a pcluster, so a pcluster begins at each position to which
//! a repeat refers. All repeats are found before compression starts, so that compression can still use several threads.
//!
//! Within runs of a segment's length, fragments of files with the same extension are adjacent, because they compress
//! better. With large pclusters they stay in tree order.
//!
//! The result does not depend on the number of threads, because files are split into segments of a fixed size, each
//! segment is compressed independently, and one thread consumes the results in order and decides their placement.
#![forbid(unsafe_code)]

mod allocation;
mod archive;
mod assembly;
mod build;
mod changed;
mod chunks;
mod complete_image;
mod compressors;
mod content;
mod data;
mod duplicates;
mod error;
mod excludes;
mod expected;
mod file_split;
mod file_xattrs;
mod grains;
mod hints;
mod image_file;
mod kinds;
mod launch;
mod layout;
mod memory;
mod metadata;
mod naming;
mod options;
mod output_file;
mod overlay;
mod overwritten_file;
mod packed;
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
mod storage_method;
mod stored_blocks;
mod stored_contents;
mod stored_file;
mod summary;
mod temporaries;
mod tree;
mod whiteout;
mod workers;
mod xattrs;

pub use archive::is_archive;
pub use build::{build, build_unnamed, build_verified};
pub use complete_image::CompleteImage;
pub use error::Error;
pub use expected::{Expected, ExpectedInode, PieceDigest, Verified, Verifier, VerifyError};
pub use floe_codec::encode::{COMPRESSORS, Compression, Compressor, CompressorSettings, LZ4_WINDOW_MAX};
pub use floe_erofs::write::InodeForm;
pub use hints::{Coding, Hint};
pub use layout::{Layout, Metabox};
pub use naming::Companion;
pub use options::{Fragments, Options, Ownership, Source, Times, Whiteouts, Xattrs};
pub use overlay::OverlayMarks;
pub use profile::{NameUsage, Profile, ProfileName, ProfileRange, ProfileStep, RecordedStep};
pub use progress::{NoProgress, Phase, Progress};
pub use summary::Summary;
pub use temporaries::Temporaries;
