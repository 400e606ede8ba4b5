//! `floe upgrade`: replaces the program of the service, or the process that serves a mount.

use std::{
    io,
    os::fd::AsFd,
    path::{Path, PathBuf},
};

use floe_image::ShownName;
use floe_ipc::ServiceClient;
use floe_mount::{
    control::Client,
    daemon::own_program,
    handover::{ServiceManager, start_successor},
};
use rustix::fs::{Mode, OFlags, open};

use crate::fail::{Exit, Fail};

/// Replace the program of the service, or the process that serves a mount, by a newer version; mounts stay
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct Arguments {
    /// The mountpoint of a mount without the service; otherwise, the service is upgraded
    #[arg(value_name = "DIR")]
    directory: Option<PathBuf>,
    /// The program from now on [default: this one]
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
}

const HELP: &str = "\
Without DIR, floe serve goes on with the new program in the same process, with its arguments and its
environment, and new processes read the images of all its mounts. If the new program cannot continue
the service, the old one goes on.

With DIR, the new process has the arguments and the working directory of the old one, and the environment
of this command. It runs in the background. If it fails to start, the old one continues to serve. Mounts with
the kernel's EROFS in front cannot be upgraded one by one, nor those over io_uring; -o front=fuse,transport=dev
avoids both, and floe status shows them.

Open files, working directories and running programs stay valid; changes of floe tune stay in effect;
caches and statistics start empty.

Examples:
  floe upgrade
  floe upgrade --program /opt/floe-next/floe
  floe upgrade /mnt

Exit codes:
  0  the new program serves all mounts
  1  the new program fails, or a process of the old one still serves a mount; or there is no service, it is
     another user's, or DIR is not a mount of Floe or one of another user
  2  wrong usage";

/// Runs the command.
///
/// # Errors
/// The mount does not answer, or the new process fails.
pub(crate) fn run(arguments: &Arguments) -> Result<u8, Fail> {
    let program = arguments.program.clone().unwrap_or_else(own_program);
    let Some(directory) = &arguments.directory else { return upgrade_service(&program) };
    let mounted = Client::find(directory)?;
    let shown = directory.shown();
    let invocation = mounted.invocation()?;
    if invocation.is_service && !ServiceManager::is_present() {
        return Err(Fail::failed(format!(
            "{shown} is served by a service, whose processes only its service manager may replace: run systemctl reload, \
             with ExecReload=floe upgrade {shown} in its unit"
        )));
    }
    // The new process has another working directory.
    let program = std::path::absolute(&program).unwrap_or(program);
    let remarks = start_successor(&program, &invocation, &mounted)
        .map_err(|fail| Fail::failed(format!("{fail}; process {} still serves {shown}", invocation.process)))?;
    crate::say::part(format_args!("{remarks}"));
    Ok(Exit::Done.code())
}

/// Replaces the program of the service.
///
/// # Errors
/// There is none, it is another user's, or the program cannot continue it.
fn upgrade_service(program: &Path) -> Result<u8, Fail> {
    let file = open(program, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let file = file.map_err(|error| Fail::failed(format!("{}: {}", program.shown(), io::Error::from(error))))?;
    let mut service = ServiceClient::connect().map_err(|error| Fail::failed(error.to_string()))?;
    let remarks = service.upgrade(file.as_fd()).map_err(|error| Fail::failed(error.to_string()))?;
    for remark in &remarks {
        say!("floe: {remark}");
    }
    Ok(if remarks.is_empty() { Exit::Done.code() } else { Exit::Failed.code() })
}
