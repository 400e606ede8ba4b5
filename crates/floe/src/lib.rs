//! Reads compressed read-only images, EROFS and SquashFS, without mounting them.
//!
//! [`Image::open`] recognises the format by the content of the file. An [`Image`] may be used from many threads at once,
//! and its clones share its caches. [`OpenOptions`] limits the memory of the caches. It can also find images inside other
//! files ([`Offset::Auto`]): behind the program of an AppImage, or in a partition of a SIF file.
//!
//! ```
//! use floe::{Image, OpenOptions};
//!
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/demo.erofs");
//! let image = Image::open(path, &OpenOptions::default())?;
//! let nid = image.resolve("/README.txt")?;
//! let mut beginning = [0; 64];
//! let len = image.read_at(nid, 0, &mut beginning)?;
//! println!("{}", String::from_utf8_lossy(&beginning[..len]));
//! # assert_eq!(len, 64);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | to | use |
//! | --- | --- |
//! | read many images with the threads and caches of one | [`Engine`], [`Image::open_in`] |
//! | find a path | [`Image::resolve`] |
//! | visit a tree | [`Image::walk`] |
//! | list a directory | [`Image::read_dir`] |
//! | read bytes of a file | [`Image::read_at`] |
//! | read attributes, link targets and extended attributes; find where bytes are stored | [`Image::file_system`] |
//! | write a tree into a directory | [`extract()`] |
//! | write a tree as a tar archive | [`write_tar()`] |
//! | find faults | [`check()`] |
//!
//! # Hostile images
//!
//! Any byte of an image may be wrong. A violated rule of the format is an [`Error::Corrupt`], which names the rule and the
//! place. The options and the size of the file bound memory, and walks end after as many entries as the image has room for.
//! This crate has no unsafe code, but the decompression libraries do. The program `floe` confines itself before it parses an
//! image; a library cannot do that for its caller.
//!
//! # Threads
//!
//! An open image has one decompression thread for each CPU, unless it is opened in an [`Engine`] that it shares with others.
//! With [`WorkerMode::Inline`] it has none, and the calling thread decompresses. Calls block; there is no async interface. A program that runs where the address space is limited
//! (`ulimit -v`) calls [`keep_address_space`] first.
//!
//! # Features
//!
//! - `mkfs`: `ImageVerifier`, which reads back an image that `floe-mkfs` has built. An [`Image`] is a source for `floe-mkfs`.
//! - `remote`: `Image::open_url`, which opens images on HTTP servers, in object stores and in registries.
//! - `service`: `service::ServiceClient`, which mounts images through the service `floe serve`.
#![forbid(unsafe_code)]

mod check;
mod devices;
mod directory;
mod extract;
mod image;
mod image_files;
mod likeness;
mod memory_limit;
mod open_error;
mod open_options;
mod read_many;
mod resolve;
#[cfg(feature = "mkfs")]
mod source_image;
mod tar;
#[cfg(feature = "mkfs")]
mod verify;
mod walk;

pub use check::{CheckOptions, CheckSummary, check, check_files};
pub use devices::NamedFiles;
pub use directory::{DirectoryEntry, ReadDir};
pub use extract::{
    Choice, ExtractAction, ExtractError, ExtractEvent, ExtractOmission, ExtractOptions, ExtractPart, ExtractSummary,
    ExtractTarget, ExtractWarning, ExtractWarningCause, Parts, XattrFilter, XattrSelection, extract,
};
pub use floe_engine::{
    BadValue, Counters, Engine, EngineOptions, MetadataCacheDesign, Priority, ReadaheadAlloc, Reader, SyncDecompress,
    VolumeOptions, WorkerMode,
};
pub use floe_erofs::SuperblockChecksum;
pub use floe_image::{
    Attr, ByteRange, DeviceNumber, Error, Extent, ExtentData, FileSystem, FileSystemInfo, FileType, Finding,
    ImageSource, Nid, Place, SeekTarget, Severity, Timestamp, Xattr,
};
#[cfg(feature = "service")]
pub use floe_ipc as service;
#[cfg(feature = "remote")]
pub use floe_remote as remote;
pub use floe_source::ImageFormat as Format;
pub use image::{FormatImage, Image};
pub use image_files::ImageFiles;
pub use likeness::Likeness;
pub use memory_limit::{keep_address_space, memory_limit_bytes};
pub use open_error::OpenError;
pub use open_options::{Offset, OpenOptions};
pub use read_many::ReadRequest;
pub use resolve::PathError;
pub use tar::{TarError, TarOmission, TarOptions, TarSummary, write_tar};
#[cfg(feature = "mkfs")]
pub use verify::{ImageVerifier, Thoroughness};
pub use walk::{EntryLimit, Walk, WalkEntry, WalkError};
