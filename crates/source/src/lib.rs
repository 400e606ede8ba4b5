//! Where image bytes come from.
//!
//! A [`FileSource`] is a file or a block device, or a part of it. [`locate()`] finds the file system in one that holds
//! something else too: an AppImage, a SIF container, a disk.
//! [`standard_output_was_closed`] tells what the standard library hides of where output goes.
#![deny(unsafe_code)]

mod elf;
mod file_source;
mod locate;
mod magic;
mod sif;
#[allow(unsafe_code)]
mod standard_output_sys;

pub use file_source::FileSource;
pub use locate::{Location, SCAN_ALIGNMENT, SCAN_BYTES_MAX, locate};
pub use magic::ImageFormat;
pub use standard_output_sys::standard_output_was_closed;
