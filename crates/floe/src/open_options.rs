//! Options for opening an image.

use std::path::PathBuf;

use floe_engine::{EngineOptions, VolumeOptions};
use floe_erofs::SuperblockChecksum;

use crate::memory_limit::memory_limit_bytes;

/// Options for opening an image. The default expects the image at the start of the file, and sizes caches by the memory
/// limits of this process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OpenOptions {
    /// The offset of the image in the file.
    pub offset: Offset,
    /// The files of the extra devices of an EROFS image, in the order of its device table.
    pub devices: Vec<PathBuf>,
    /// The directory for extra devices that are not in `devices`: files are opened there under the names in the image's
    /// device table. Symbolic links are not followed. With `None`, the image cannot name files.
    pub device_directory: Option<PathBuf>,
    /// Whether an EROFS image is refused if the checksum of its superblock is wrong.
    pub superblock_checksum: SuperblockChecksum,
    /// The options of the read engine. Images that are opened in a given engine do not use them.
    pub engine: EngineOptions,
    /// The options of the image within its engine.
    pub volume: VolumeOptions,
    /// Options for fetching remote images.
    #[cfg(feature = "remote")]
    pub remote: floe_remote::ImageOptions,
}

impl Default for OpenOptions {
    fn default() -> Self {
        let engine = EngineOptions::for_memory(memory_limit_bytes());
        Self {
            offset: Offset::default(),
            devices: Vec::new(),
            device_directory: None,
            superblock_checksum: SuperblockChecksum::default(),
            engine,
            volume: VolumeOptions::default(),
            #[cfg(feature = "remote")]
            remote: floe_remote::ImageOptions::default(),
        }
    }
}

/// The position of an image in a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Offset {
    /// At the start of the file.
    #[default]
    None,
    /// At this offset, in bytes.
    At(u64),
    /// At the start of the file if an image is there. Otherwise Floe searches for it, for example behind the program of
    /// an AppImage or in the partitions of a SIF file.
    Auto,
}
