//! Building EROFS images.
//!
//! [`build`] takes [`Options`] and sources, scans them into a tree, compresses what is in the files on several threads,
//! lays out the metadata and writes the image under its name when it is whole. The same input and options give the same
//! bytes, however many threads there are.
#![forbid(unsafe_code)]

mod allocation;
mod assembly;
mod build;
mod chunks;
mod content;
mod data;
mod duplicates;
mod error;
mod image_file;
mod metadata;
mod options;
mod packed;
mod progress;
mod scan;
mod segment;
mod stored_file;
mod summary;
mod tree;
mod workers;
mod xattrs;

pub use build::build;
pub use error::Error;
pub use floe_codec::encode::{Compression, LZ4_WINDOW_MAX};
pub use floe_erofs::write::InodeForm;
pub use options::{Fragments, Options, Ownership, Source, Times, Xattrs};
pub use progress::{NoProgress, Phase, Progress};
pub use summary::Summary;
