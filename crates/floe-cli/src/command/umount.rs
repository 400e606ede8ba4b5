//! `floe umount`: unmounts images.

use std::path::PathBuf;

use floe_fuse::{Detach, UnmountError, unmount};

use crate::{exit::Exit, fail::Fail, mount_users::MountUsers};

/// Unmount images, also those whose program is gone
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The directories they are mounted on
    #[arg(value_name = "DIR", required = true)]
    directories: Vec<PathBuf>,
    /// Unmount even if it is in use: the mount disappears from the tree, and ends when nobody uses it any more
    #[arg(short, long)]
    lazy: bool,
}

/// Runs the command. All directories are tried.
///
/// # Errors
/// One of them is not a mountpoint, is in use, or this user may not.
pub(crate) fn run(arguments: &Arguments) -> Result<u8, Fail> {
    let detach = if arguments.lazy { Detach::Lazily } else { Detach::Never };
    let mut last = Ok(Exit::Done.code());
    for directory in &arguments.directories {
        let Err(error) = unmount(directory, detach) else { continue };
        let fail = match error {
            UnmountError::Busy(path) => Fail::failed(format!(
                "{path} is in use {}: end that, or run floe umount --lazy {path}",
                MountUsers::of(&path),
                path = path.display()
            )),
            error => error.into(),
        };
        if let Err(earlier) = std::mem::replace(&mut last, Err(fail)) {
            eprintln!("floe: {earlier}");
        }
    }
    last
}
