//! The SquashFS 4.0 format: reader, check and dump.
//!
//! [`Squashfs`] is a [`FileSystem`](floe_image::FileSystem) over any [`BlockReader`](floe_image::BlockReader). It
//! caches no decoded blocks and starts no threads. [`check`] finds the faults of an image, and [`dump`] describes its
//! contents. Section names in comments refer to docs/format/squashfs.md.
#![forbid(unsafe_code)]
#![deny(clippy::as_conversions, clippy::indexing_slicing, clippy::arithmetic_side_effects)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![cfg_attr(
    test,
    allow(
        clippy::as_conversions,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic
    )
)]

pub mod check;
pub mod dump;
pub mod format;
mod read;

pub use read::{Compression, CompressorOptions, Flags, Squashfs, Superblock};
