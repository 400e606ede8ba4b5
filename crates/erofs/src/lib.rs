//! The EROFS format: reader and writer.
//!
//! [`Erofs`] reads an image; [`extra_devices`] lists the extra devices that it needs. docs/format/erofs.md describes
//! the format; [`mod@format`] contains its raw structures.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::as_conversions, clippy::indexing_slicing))]

mod algorithm;
pub mod format;
mod read;
pub mod write;

pub use algorithm::{ALGORITHMS, Algorithm, AlgorithmConfiguration};
pub use read::{DeviceSlot, Erofs, SuperblockChecksum, check, dump, extra_devices};
