//! The arguments that select an image.

use std::path::PathBuf;

use clap::Args;
use floe::{EngineOptions, Image, ImageFiles, Offset, OpenError, OpenOptions};
use floe_sandbox::Policy;

use crate::{
    command::mount::offset,
    confinement::{self, Opened, SandboxArguments},
    fail::Fail,
    remote::RemoteArguments,
};

/// The arguments that select an image.
#[derive(Args)]
pub(crate) struct ImageArguments {
    /// The EROFS or SquashFS image: a file, a device, or a URL (https://, s3://, gs://, az://, oci://)
    #[arg(value_name = "IMAGE")]
    pub(crate) image: PathBuf,

    /// The offset of the image in the file: a number of bytes, or 'auto' to search for it (AppImage, SIF)
    #[arg(long, value_name = "BYTES|auto", value_parser = offset)]
    pub(crate) offset: Option<Offset>,

    /// The file or URL of an extra device of an EROFS image; may be repeated, in the order of the device table
    #[arg(long = "device", value_name = "FILE")]
    pub(crate) devices: Vec<PathBuf>,

    /// A directory with the other extra devices of an EROFS image, under their names in the device table
    #[arg(long, value_name = "DIR")]
    pub(crate) device_directory: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) sandbox: SandboxArguments,
    #[command(flatten)]
    pub(crate) remote: RemoteArguments,
}

impl ImageArguments {
    /// Opens the image and confines the process to reading it.
    pub(crate) fn open(&self) -> Result<Image, Fail> {
        let options = self.open_options();
        Ok(Image::of(self.open_files(confinement::reading())??, &options)?)
    }

    /// Opens the files of the image and confines the process to `policy`. The outer error is the sandbox's.
    pub(crate) fn open_files(&self, policy: Policy) -> Result<Result<ImageFiles, OpenError>, Fail> {
        Ok(self.open_confined(policy)?.map(|opened| opened.files))
    }

    /// As [`open_files`](Self::open_files), with the process that fetches a remote image.
    pub(crate) fn open_confined(&self, policy: Policy) -> Result<Result<Opened, OpenError>, Fail> {
        confinement::open(&self.image, &self.open_options(), policy, self.sandbox.mode())
    }

    /// The options for opening the image, for a command that reads on its own threads.
    pub(crate) fn open_options(&self) -> OpenOptions {
        let engine =
            EngineOptions { workers: floe::WorkerMode::Inline, reserved_pages: 0, ..OpenOptions::default().engine };
        let volume = floe::VolumeOptions { read_around: false, ..Default::default() };
        OpenOptions {
            offset: self.offset.unwrap_or_default(),
            devices: self.devices.clone(),
            device_directory: self.device_directory.clone(),
            engine,
            volume,
            remote: self.remote.options(),
            ..OpenOptions::default()
        }
    }
}
