//! `floe umount`: unmounts images.

use std::path::PathBuf;

use floe_fuse::{Detach, UnmountError, unmount};
use floe_image::ShownName;

use crate::{exit::Exit, fail::Fail, mount_users::MountUsers};

/// Unmount images, including those whose serving process is gone
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The mountpoints
    #[arg(value_name = "DIR", required = true)]
    directories: Vec<PathBuf>,
    /// Unmount even if the mount is in use: it disappears from the tree at once and ends with its last use
    #[arg(short, long)]
    lazy: bool,
}

/// Runs the command for all directories, even if it fails for some.
///
/// # Errors
/// One of the directories is not a mountpoint or is in use, or this user may not unmount it.
pub(crate) fn run(arguments: &Arguments) -> Result<u8, Fail> {
    let detach = if arguments.lazy { Detach::Lazily } else { Detach::Never };
    let mut last = Ok(Exit::Done.code());
    for directory in &arguments.directories {
        let Err(error) = unmount(directory, detach) else { continue };
        let fail = match error {
            UnmountError::Busy(path) => Fail::failed(format!(
                "{path} is in use {}: end these processes, or run floe umount --lazy {path}",
                MountUsers::of(&path),
                path = path.shown()
            )),
            error => error.into(),
        };
        if let Err(earlier) = std::mem::replace(&mut last, Err(fail)) {
            say!("floe: {earlier}");
        }
    }
    last
}
