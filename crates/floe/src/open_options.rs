//! How an image is opened.

use std::path::PathBuf;

use floe_engine::EngineOptions;

use crate::memory_limit::memory_limit_bytes;

/// How an image is opened. The default is right for an image that begins with the file, and keeps as much in memory as
/// the limits of this process allow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OpenOptions {
    /// Where in the file the image begins.
    pub offset: Offset,
    /// The extra devices that an EROFS image names, in the order of its table.
    pub devices: Vec<PathBuf>,
    /// The directory in which extra devices are opened that are not in `devices`, under the names that the image gives
    /// them. Symbolic links there are not followed. None: the image names no files.
    pub device_directory: Option<PathBuf>,
    /// The options of the read engine.
    pub engine: EngineOptions,
}

impl Default for OpenOptions {
    fn default() -> Self {
        let engine = EngineOptions::for_memory(memory_limit_bytes());
        Self { offset: Offset::default(), devices: Vec::new(), device_directory: None, engine }
    }
}

/// Where in a file an image begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Offset {
    /// At its first byte.
    #[default]
    None,
    /// At this byte.
    At(u64),
    /// At its first byte if an image is there; otherwise it is looked for, behind the program of an AppImage or in the
    /// parts of a SIF file for example.
    Auto,
}
