//! Kernel mounts of images, the reference for comparisons.

use std::{
    ffi::CString,
    fs, io,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    process::Command,
};

use rustix::mount::{MountFlags, UnmountFlags};
use tempfile::{NamedTempFile, TempDir};

use crate::corpus::{Format, Materialised};

/// The kernel requires `fsoffset=` to be a multiple of the page size.
const FILE_OFFSET_ALIGNMENT: u64 = 4_096;

/// The largest unit in which the kernel reads a loop device: a page.
const DEVICE_BLOCK_BYTES: u64 = 4_096;

/// An image mounted by the kernel; unmounted when dropped.
pub struct KernelMount {
    directory: TempDir,
}

impl KernelMount {
    /// Mounts an image of the corpus.
    ///
    /// # Errors
    /// The kernel refuses; the string states why.
    pub fn new(image: &Materialised) -> Result<Self, String> {
        let directory = tempfile::Builder::new().prefix("floe-kernel-").tempdir().map_err(|error| error.to_string())?;
        match image.format {
            Format::Erofs if image.offset.is_multiple_of(FILE_OFFSET_ALIGNMENT) => {
                if !mount_file(image, directory.path())? {
                    mount_loop(image, directory.path())?;
                }
            }
            Format::Erofs | Format::Squashfs => mount_loop(image, directory.path())?,
        }
        Ok(Self { directory })
    }

    /// Mounts an image of the corpus through a loop device.
    ///
    /// # Errors
    /// The kernel refuses; the string states why.
    pub fn through_loop(image: &Materialised) -> Result<Self, String> {
        let directory = tempfile::Builder::new().prefix("floe-kernel-").tempdir().map_err(|error| error.to_string())?;
        mount_loop(image, directory.path())?;
        Ok(Self { directory })
    }

    /// The mount point.
    pub fn path(&self) -> PathBuf {
        self.directory.path().to_path_buf()
    }
}

impl Drop for KernelMount {
    fn drop(&mut self) {
        if let Err(error) = rustix::mount::unmount(self.directory.path(), UnmountFlags::DETACH) {
            eprintln!("{} stays mounted: {error}", self.directory.path().display());
        }
    }
}

/// Mounts EROFS directly from the file; returns false if the underlying file system does not support that (tmpfs). The
/// program `mount` would create a loop device, which would require loop devices for extra devices too.
fn mount_file(image: &Materialised, directory: &Path) -> Result<bool, String> {
    let mut options: Vec<Vec<u8>> = Vec::new();
    if image.offset > 0 {
        options.push(format!("fsoffset={}", image.offset).into());
    }
    options.extend(image.devices.iter().map(|device| [b"device=", device.as_os_str().as_bytes()].concat()));
    let options = CString::new(options.join(&b","[..])).expect("paths hold no NUL");
    match rustix::mount::mount(&image.path, directory, "erofs", MountFlags::RDONLY, options.as_c_str()) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::NOTBLK) => Ok(false),
        Err(error) => Err(format!("the kernel does not mount {}: {error}", image.path.display())),
    }
}

/// Mounts through a loop device, which exposes whole blocks only: an image that ends within a block is copied and
/// padded with zeros.
fn mount_loop(image: &Materialised, directory: &Path) -> Result<(), String> {
    let told = |error: io::Error| format!("{}: {error}", image.path.display());
    let len = fs::metadata(&image.path).map_err(told)?.len();
    let mut padded = NamedTempFile::new().map_err(told)?;
    let file = if len.is_multiple_of(DEVICE_BLOCK_BYTES) {
        &image.path
    } else {
        io::copy(&mut fs::File::open(&image.path).map_err(told)?, &mut padded).map_err(told)?;
        padded.as_file().set_len(len.next_multiple_of(DEVICE_BLOCK_BYTES)).map_err(told)?;
        padded.path()
    };
    let mut command = Command::new("mount");
    command.args(["-t", image.format.name(), "-o"]).arg(format!("ro,loop,offset={}", image.offset));
    let output = command.arg(file).arg(directory).output().map_err(|error| format!("mount cannot be run: {error}"))?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(complaint.trim().to_owned()) }
}
