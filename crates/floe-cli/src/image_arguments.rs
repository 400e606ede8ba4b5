//! The image that a command is about.

use std::path::PathBuf;

use clap::Args;
use floe::{EngineOptions, Image, ImageFiles, Offset, OpenError, OpenOptions};
use floe_sandbox::Policy;

use crate::{
    command::mount::offset,
    confinement::{self, SandboxArguments},
    fail::Fail,
};

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
    #[command(flatten)]
    pub(crate) sandbox: SandboxArguments,
}

impl ImageArguments {
    /// Opens the image, in a process that may only read it from then on.
    pub(crate) fn open(&self) -> Result<Image, Fail> {
        let options = self.open_options();
        Ok(Image::of(self.open_files(confinement::reading())??, &options.engine)?)
    }

    /// Opens the files of the image, in a process that may do no more than `policy` says from then on. The outer error is
    /// the sandbox's.
    pub(crate) fn open_files(&self, policy: Policy) -> Result<Result<ImageFiles, OpenError>, Fail> {
        let opened = confinement::open(&self.image, &self.open_options(), policy, self.sandbox.mode())?;
        Ok(opened.map(|(files, _)| files))
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
