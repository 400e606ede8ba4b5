//! The process that looks up the names of a launch in a mount of another user's service.
//!
//! That service starts no thread which would wait for a user's mount. So the process that has asked for the mount leaves this one
//! behind. It has the user's rights alone, and ends with the replay.

use std::{
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use floe_keeper::{LaunchWalker, MountTable, Place};
use floe_mount::daemon::own_program;

use crate::fail::{Exit, Fail};

/// The hidden command that looks names up for the process at the other end of standard input.
pub(crate) const WALK_COMMAND: &str = "look-up-for-another";

/// Look names up in a mount
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The directory of the mount
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Starts the process for the mount on a directory. `socket` is its end of the connection.
///
/// # Errors
/// It cannot be started.
pub(super) fn start(directory: &Path, socket: OwnedFd) -> io::Result<()> {
    let mut program = Command::new(own_program());
    // The program name selects drop-in programs, so it must be `floe`.
    program.arg0("floe").arg(WALK_COMMAND).arg("--").arg(directory).stdin(Stdio::from(socket));
    // Signals of a terminal are not for it, and nobody waits for what it prints.
    program.stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    program.spawn().map(drop)
}

/// Looks names up until the replay or the mount has ended.
///
/// # Errors
/// Nothing is mounted there.
pub(crate) fn run(arguments: &Arguments) -> Result<u8, Fail> {
    // It is no process that reads images.
    let _ = rustix::thread::set_name(c"floe-walk");
    let failed = |error: io::Error| Fail::failed(format!("this command is internal to floe: {error}"));
    let socket = io::stdin().as_fd().try_clone_to_owned().map_err(failed)?;
    let directory = std::path::absolute(&arguments.directory).map_err(failed)?;
    // The directory below the mount may have to be unmounted.
    std::env::set_current_dir("/").map_err(failed)?;
    let table = MountTable::read().map_err(failed)?;
    let entry = table.find(&directory).map_err(failed)?.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
    LaunchWalker::over(socket, Place::with_id(Some(entry.id), &directory)).run();
    Ok(Exit::Done.code())
}
