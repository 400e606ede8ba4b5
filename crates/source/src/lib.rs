//! Sources of image bytes.
//!
//! A [`FileSource`] is a file or block device, or a part of one. [`locate()`] finds the file system in a file that has
//! other content too: an AppImage, a SIF container, a disk image. [`standard_output_was_closed`] reports whether
//! standard output was closed when the program started, which the standard library hides.
#![deny(unsafe_code)]
mod file_source;
mod locate;
mod magic;
#[allow(unsafe_code)]
mod standard_output_sys;

pub use file_source::FileSource;
pub use locate::{Location, SCAN_ALIGNMENT, SCAN_BYTES_MAX, locate};
pub use magic::ImageFormat;
pub use standard_output_sys::standard_output_was_closed;
