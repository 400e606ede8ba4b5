//! The types and traits that formats, the engine and sources share.
//!
//! Formats *map*: a [`FileSystem`] turns an inode and a [`ByteRange`] into [`Extent`]s. The engine *reads*: it fetches,
//! decodes and caches the [`StoredBlock`]s of those extents, and serves metadata to formats through a [`BlockReader`].
//! Image bytes come from an [`ImageSource`]. This crate holds only these types and traits: no I/O and no threads.
#![forbid(unsafe_code)]

mod attr;
mod block;
mod decompressor;
mod directory;
mod error;
mod extent;
mod file_system;
mod finding;
mod metrics;
mod range;
mod range_set;
mod reader;
mod shown;
mod source;
mod start_error;
mod xattr;

pub use attr::{Attr, DeviceNumber, FileType, Nid, Outline, Timestamp};
pub use block::{BcjFilters, DecodeEffort, DecodedLen, DeviceId, Encoding, Padding, StoredBlock, StoredLen};
pub use bytes::Bytes;
pub use decompressor::{DecodeError, Decompressor};
pub use directory::{DIRECTORY_DEPTH_MAX, DIRECTORY_TOO_DEEP, DirectoryCursor, Dirent};
pub use error::{Error, Place, Result};
pub use extent::{Extent, ExtentData};
pub use file_system::{Capabilities, FileSystem, FileSystemInfo, SeekTarget};
pub use finding::{Finding, Severity};
pub use metrics::{Metric, MetricKind, Metrics};
pub use range::ByteRange;
pub use range_set::ByteRangeSet;
pub use reader::{BlockReader, DecodedBlock};
pub use shown::{Shown, ShownName, harmless, json_name};
pub use source::ImageSource;
pub use start_error::start_error;
pub use xattr::Xattr;
