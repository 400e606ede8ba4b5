//! Builds EROFS and SquashFS images.
//!
//! [`build()`] takes [`Options`] and sources (directories, tar archives and images). Data passes through five folders, each of which
//! uses only those before it: `scan` lists the sources into a tree; `content` decides what is stored of the files, in which
//! order, and how; `compress` reads and compresses on several threads; `layout` writes data, metadata and superblock;
//! `output` has the image verified, and names it. Only `layout` writes structures of a format; `content` and `compress` know
//! the rules of pclusters and blocks. For the packed inode and the metabox of EROFS, `layout` calls them again. Equal input
//! and options give equal bytes, whatever the number of threads.
//!
//! An EROFS image has three parts: the superblock's block; the data in the order of the tree, followed by the data of the
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
//!
//! A SquashFS image (`compress/blocks`, `layout/squashfs`) has the blocks of files in the order of the tree. Its fragment
//! blocks are planned before anything is read, because the sizes of files determine them. So threads compress them like all
//! other blocks.
#![forbid(unsafe_code)]

mod build;
mod compress;
mod content;
mod error;
mod files;
mod layout;
mod memory;
mod options;
mod output;
mod profile;
mod progress;
mod scan;
mod tree;
mod workers;

pub use build::{build, build_unnamed};
pub use compress::piece::PieceDigest;
pub use error::Error;
pub use files::temporaries::Temporaries;
pub use floe_codec::encode::{
    BlockCompression, COMPRESSORS, Compression, Compressor, CompressorSettings, LZ4_WINDOW_MAX,
};
pub use floe_erofs::write::InodeForm;
pub use layout::{squashfs::SquashfsSummary, type_usage::TypeUsage};
pub use options::{
    Coding, FileContexts, Format, Fragments, FsConfig, Hint, ImpliedDirectories, Layout, Metabox, Options,
    OverlayMarks, Ownership, PackedTails, PathFilter, PseudoAction, PseudoAttributes, PseudoBody, PseudoFile,
    RootAttributes, Source, SquashfsOptions, Times, TreeChanges, UncompressedParts, Whiteouts, Xattrs,
};
pub use output::{
    CompleteImage, Summary,
    expected::{Expected, ExpectedInode, Verified, Verifier, VerifyError},
    naming::Companion,
};
pub use profile::{NameUsage, Profile, ProfileName, ProfileRange, ProfileStep, RecordedStep};
pub use progress::{NoProgress, Phase, Progress};
pub use scan::archive::is_archive;
pub use tree::source_image::{ImageReader, SourceImage};
