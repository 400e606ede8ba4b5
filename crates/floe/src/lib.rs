//! Fast, predictable reads from compressed read-only images, in userspace.
//!
//! An [`Image`] is one EROFS or SquashFS image, open for reading. It is found by its content, reads through caches of a
//! bounded size, and may be used from many threads at once; clones share all of it.
//!
//! [`Image::resolve`] finds a path, [`Image::walk`] visits a tree, [`Image::read_dir`] one directory, [`Image::read_at`]
//! gives bytes of a file. What lies below is there too: [`Image::file_system`] says where the bytes of a file are
//! stored, and [`Image::reader`] is what `floe mount` serves from.
#![forbid(unsafe_code)]

mod check;
mod devices;
mod directory;
mod entry_limit;
mod extract;
mod format;
mod image;
mod image_files;
mod launch_ahead;
mod likeness;
mod memory_limit;
mod open_error;
mod open_options;
mod path_error;
mod read_many;
mod resolve;
mod sources;
#[cfg(feature = "mkfs")]
mod verify;
mod walk;

pub use check::{CheckOptions, CheckSummary, Finding, Severity, check, check_files};
pub use directory::{DirectoryEntry, ReadDir};
pub use entry_limit::EntryLimit;
pub use extract::{
    ExtractError, ExtractEvent, ExtractOptions, ExtractSummary, Parts, Setback, SetbackCause, XattrSelection, extract,
};
pub use floe_engine::{
    BadValue, Counters, EngineOptions, MetadataCacheDesign, Priority, ReadaheadAlloc, Reader, SyncDecompress,
    WorkerMode,
};
pub use floe_image::{
    Attr, ByteRange, DeviceNumber, Error, Extent, ExtentData, FileSystem, FileSystemInfo, FileType, Nid, SeekTarget,
    Timestamp, Xattr,
};
pub use floe_source::ImageFormat as Format;
pub use format::FormatImage;
pub use image::Image;
pub use image_files::ImageFiles;
pub use likeness::Likeness;
pub use open_error::OpenError;
pub use open_options::{Offset, OpenOptions};
pub use path_error::PathError;
pub use read_many::ReadRequest;
#[cfg(feature = "mkfs")]
pub use verify::{ImageVerifier, Thoroughness};
pub use walk::{Walk, WalkEntry, WalkError};
