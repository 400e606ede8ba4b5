//! The EROFS format: reading and writing.
//!
//! The format itself is described in docs/format/erofs.md; [`mod@format`] has its raw structures.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::as_conversions, clippy::indexing_slicing))]

pub mod format;
pub mod write;
