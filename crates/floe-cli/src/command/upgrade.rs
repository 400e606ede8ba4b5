//! `floe upgrade`: replaces the process that serves a mount.

use std::path::PathBuf;

use crate::fail::{Exit, Fail};
use floe_image::ShownName;
use floe_mount::{
    control::Client,
    daemon::own_program,
    handover::{ServiceManager, start_successor},
};

/// Replace the process that serves a mount, for example by a newer version; the mount stays
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct Arguments {
    /// The mountpoint
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// The program that serves the mount from now on [default: this one]
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
}

const HELP: &str = "\
The new process has the arguments and the working directory of the old one, and the environment of this
command. It runs in the background. Open files, working directories and running programs of the mount
stay valid; changes of floe tune stay in effect; caches and statistics start empty. If the new process
fails to start, the old one continues to serve. Mounts with the kernel's EROFS in front cannot be upgraded,
nor those over io_uring; -o front=fuse,transport=dev avoids both, and floe status shows them.

Examples:
  floe upgrade /mnt
  floe upgrade --program /opt/floe-next/floe /mnt

Exit codes:
  0  a new process serves the mount
  1  not a mount of Floe, the mount of another user, or the new process fails; the old one continues
  2  wrong usage";

/// Runs the command.
///
/// # Errors
/// The mount does not answer, or the new process fails.
pub(crate) fn run(arguments: &Arguments) -> Result<u8, Fail> {
    let mounted = Client::find(&arguments.directory)?;
    let shown = arguments.directory.shown();
    let invocation = mounted.invocation()?;
    if invocation.is_service && !ServiceManager::is_present() {
        return Err(Fail::failed(format!(
            "{shown} is served by a service, whose processes only its service manager may replace: run systemctl reload, \
             with ExecReload=floe upgrade {shown} in its unit"
        )));
    }
    let program = arguments.program.clone().unwrap_or_else(own_program);
    // The new process has another working directory.
    let program = std::path::absolute(&program).unwrap_or(program);
    let remarks = start_successor(&program, &invocation, &mounted)
        .map_err(|fail| Fail::failed(format!("{fail}; process {} still serves {shown}", invocation.process)))?;
    crate::say::part(format_args!("{remarks}"));
    Ok(Exit::Done.code())
}
