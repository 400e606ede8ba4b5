//! Mounts of layers, each by a program that outlives the snapshotter.

use std::{
    ffi::OsString,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use floe_image::ShownName;
use rustix::{
    fs::statfs,
    io::Errno,
    mount::{UnmountFlags, unmount},
};

/// The maximum number of mounts on one directory that are removed.
const STACK_MAX: usize = 16;

/// The command that mounts an image and returns when the mount works: `PROGRAM ARGUMENTS… IMAGE DIRECTORY`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountCommand {
    /// The program.
    pub program: PathBuf,
    /// Its arguments before the image.
    pub arguments: Vec<OsString>,
}

/// The state of a directory on which an image is mounted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MountState {
    Unmounted,
    Works,
    /// The program that served it is gone.
    Dead,
}

impl MountCommand {
    /// Mounts an image on `directory`, unless a working mount is there.
    ///
    /// # Errors
    /// The last line of what the program says.
    pub(crate) fn mount(&self, image: &str, directory: &Path) -> Result<(), String> {
        match MountState::of(directory) {
            MountState::Works => return Ok(()),
            MountState::Dead => unmount_all(directory).map_err(|error| error.to_string())?,
            MountState::Unmounted => {}
        }
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).arg(image).arg(directory);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let output = command.output().map_err(|error| format!("{}: {error}", self.program.shown()))?;
        if output.status.success() {
            return Ok(());
        }
        let errors = String::from_utf8_lossy(&output.stderr);
        let last = errors.lines().last().unwrap_or_default();
        Err(format!("{image}: {}", if last.is_empty() { output.status.to_string() } else { last.to_owned() }))
    }
}

impl MountState {
    /// The state of a directory.
    pub(crate) fn of(directory: &Path) -> Self {
        let is_mounted = match (fs::metadata(directory), directory.parent().map(fs::metadata)) {
            (Err(error), _) => error.raw_os_error() == Some(Errno::NOTCONN.raw_os_error()),
            (Ok(own), Some(Ok(parent))) => own.dev() != parent.dev(),
            _ => false,
        };
        // The kernel caches attributes, but asks the program of a FUSE mount about the file system.
        match statfs(directory) {
            _ if !is_mounted => Self::Unmounted,
            Ok(_) => Self::Works,
            Err(_) => Self::Dead,
        }
    }
}

/// Removes all mounts from a directory, whether they work or not. What uses them keeps them until it ends.
///
/// # Errors
/// The kernel refuses.
pub(crate) fn unmount_all(directory: &Path) -> io::Result<()> {
    for _ in 0..STACK_MAX {
        match unmount(directory, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            Ok(()) => {}
            // Not a mountpoint, or no directory.
            Err(Errno::INVAL | Errno::NOENT) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
