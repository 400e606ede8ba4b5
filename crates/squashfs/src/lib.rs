//! The SquashFS 4.0 format: reading.
//!
//! [`Squashfs`] is a [`FileSystem`](floe_image::FileSystem) over any [`BlockReader`](floe_image::BlockReader): it keeps
//! no decoded blocks and starts no threads. [`check`] looks for everything that is wrong with an image, and [`dump`] says
//! in words what is in one. The sections named in the code are those of docs/format/squashfs.md.
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

pub use read::{Compression, CompressorOptions, Flags, Squashfs, Superblock, is_squashfs};
