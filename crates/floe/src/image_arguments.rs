//! The image that a command is about.

use std::path::PathBuf;

use clap::Args;
use floe::{EngineOptions, Image, Offset, OpenError, OpenOptions};

use crate::command::mount::offset;

/// The image that a command is about.
#[derive(Args)]
pub(crate) struct ImageArguments {
    /// The file or device with the EROFS or SquashFS image
    #[arg(value_name = "IMAGE")]
    pub(crate) image: PathBuf,

    /// Where the image begins in the file: a byte, or 'auto' to look for it (AppImage, SIF)
    #[arg(long, value_name = "BYTES|auto", value_parser = offset)]
    pub(crate) offset: Option<Offset>,

    /// An extra device of an EROFS image, in the order of its table; may be given several times
    #[arg(long = "device", value_name = "FILE")]
    pub(crate) devices: Vec<PathBuf>,

    /// Where extra devices of an EROFS image are that are not given by --device, under the names in its table
    #[arg(long, value_name = "DIR")]
    pub(crate) device_directory: Option<PathBuf>,
}

impl ImageArguments {
    /// Opens the image.
    pub(crate) fn open(&self) -> Result<Image, OpenError> {
        Image::open(&self.image, &self.open_options())
    }

    /// How it is opened, for a command that reads on its own threads.
    pub(crate) fn open_options(&self) -> OpenOptions {
        let engine = EngineOptions {
            workers: floe::WorkerMode::Inline,
            reserved_pages: 0,
            read_around: false,
            ..OpenOptions::default().engine
        };
        OpenOptions {
            offset: self.offset.unwrap_or_default(),
            devices: self.devices.clone(),
            device_directory: self.device_directory.clone(),
            engine,
        }
    }
}
