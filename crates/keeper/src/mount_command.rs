//! Mounts of layers of container images, each by a program that outlives the process that starts it.

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

impl MountCommand {
    /// Mounts an image on `directory`, unless a working mount is there. `auth_file` may have credentials for its
    /// registry.
    ///
    /// # Errors
    /// The last line of what the program says.
    pub fn mount(&self, image: &str, auth_file: Option<&Path>, directory: &Path) -> io::Result<()> {
        if is_mounted(directory)? {
            return Ok(());
        }
        let mut command = Command::new(&self.program);
        command.args(&self.arguments);
        if let Some(file) = auth_file {
            command.arg("--auth-file").arg(file);
        }
        command.arg(image).arg(directory);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let output =
            command.output().map_err(|error| io::Error::other(format!("{}: {error}", self.program.shown())))?;
        if output.status.success() {
            return Ok(());
        }
        let errors = String::from_utf8_lossy(&output.stderr);
        let last = errors.lines().last().unwrap_or_default();
        let message = if last.is_empty() { output.status.to_string() } else { last.to_owned() };
        Err(io::Error::other(format!("{image}: {}", message.trim_start_matches("floe: "))))
    }
}

/// Whether a working mount is on a directory. Removes the mount of a program that is gone.
///
/// # Errors
/// It cannot be removed.
pub fn is_mounted(directory: &Path) -> io::Result<bool> {
    let is_mounted = match (fs::metadata(directory), directory.parent().map(fs::metadata)) {
        (Err(error), _) => is_dead(&error),
        (Ok(own), Some(Ok(parent))) => own.dev() != parent.dev(),
        _ => false,
    };
    // The kernel caches attributes, but asks the program of a FUSE mount about the file system.
    match statfs(directory) {
        _ if !is_mounted => Ok(false),
        Ok(_) => Ok(true),
        Err(_) => unmount_all(directory).map(|()| false),
    }
}

/// Whether an error says that the program that served a mount is gone.
pub fn is_dead(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::NOTCONN.raw_os_error())
}

/// Removes all mounts from a directory, whether they work or not. What uses them keeps them until it ends.
///
/// # Errors
/// The kernel refuses.
pub fn unmount_all(directory: &Path) -> io::Result<()> {
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
