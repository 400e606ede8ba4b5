//! Mounts of an image by the kernel itself: the oracle.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
};

use tempfile::TempDir;

use crate::corpus::{Format, Materialised};

/// An image mounted by the kernel; unmounted when dropped.
pub struct KernelMount {
    directory: TempDir,
}

impl KernelMount {
    /// Mounts an image of the corpus.
    ///
    /// # Errors
    /// The kernel refuses; what `mount` says of it.
    pub fn new(image: &Materialised) -> Result<Self, String> {
        let mut options = vec![OsString::from("ro")];
        match image.format {
            Format::Erofs => {
                if image.offset > 0 {
                    options.push(format!("fsoffset={}", image.offset).into());
                }
                for device in &image.devices {
                    let mut option = OsString::from("device=");
                    option.push(device);
                    options.push(option);
                }
            }
            Format::Squashfs => options.push(format!("loop,offset={}", image.offset).into()),
        }
        Self::with_options(&image.path, image.format.name(), &options.join(",".as_ref()))
    }

    fn with_options(image: &Path, format: &str, options: &std::ffi::OsStr) -> Result<Self, String> {
        let directory = tempfile::Builder::new().prefix("floe-kernel-").tempdir().map_err(|error| error.to_string())?;
        let mut command = Command::new("mount");
        command.args(["-t", format, "-o"]).arg(options).arg(image).arg(directory.path());
        let output = command.output().map_err(|error| format!("mount cannot be run: {error}"))?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
        }
        Ok(Self { directory })
    }

    /// Where it is mounted.
    pub fn path(&self) -> PathBuf {
        self.directory.path().to_path_buf()
    }
}

impl Drop for KernelMount {
    fn drop(&mut self) {
        let flags = rustix::mount::UnmountFlags::DETACH;
        if let Err(error) = rustix::mount::unmount(self.directory.path(), flags) {
            eprintln!("{} stays mounted: {error}", self.directory.path().display());
        }
    }
}
