//! The EROFS format: reading and writing.
//!
//! [`Erofs`] reads an image; [`extra_devices`] says which other files it needs. The format itself is described in
//! docs/format/erofs.md; [`mod@format`] has its raw structures.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::as_conversions, clippy::indexing_slicing))]

pub mod format;
mod read;
pub mod write;

pub use read::{DeviceSlot, Erofs, check, dump, extra_devices};
