//! The types and traits that formats, the engine and sources share.
//!
//! Formats *map*: a [`FileSystem`] turns an inode and a [`ByteRange`] into [`Extent`]s. The engine *reads*: it fetches,
//! decodes and caches the [`StoredBlock`]s of those extents, and serves metadata to formats through a [`BlockReader`].
//! Image bytes come from an [`ImageSource`]. This crate holds only these types and traits: no I/O and no threads.
#![forbid(unsafe_code)]

mod attr;
mod block;
mod decompressor;
mod derived;
mod error;
mod file_system;
mod finding;
mod metrics;
mod platform;
mod range;
mod reader;
mod shown;

pub use attr::{Attr, DeviceNumber, FileType, Nid, Outline, Timestamp};
pub use block::{BcjFilters, DecodeEffort, DecodedLen, DeviceId, Encoding, Padding, StoredBlock, StoredLen};
pub use bytes::Bytes;
pub use decompressor::{DecodeError, Decompressor};
pub use derived::DerivedFileSystem;
pub use error::{Error, Place, Result, start_error};
pub use file_system::{
    Capabilities, DIRECTORY_DEPTH_MAX, DIRECTORY_TOO_DEEP, DirectoryCursor, Dirent, Extent, ExtentData, FileSystem,
    FileSystemInfo, SeekTarget, Xattr,
};
pub use finding::{Finding, Severity};
pub use metrics::{Metric, MetricKind, Metrics};
pub use platform::machine_architecture;
pub use range::{ByteRange, ByteRangeSet};
pub use reader::{BlockReader, DecodedBlock, ImageSource, SourceIdentity, SourceOrigin};
pub use shown::{Shown, ShownName, harmless, json_name};
