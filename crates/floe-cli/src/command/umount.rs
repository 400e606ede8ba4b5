//! `floe umount`: unmounts images.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use floe_image::ShownName;
use floe_ipc::{ClientError, ServiceClient, protocol::RefusalKind};
use floe_keeper::{Detach, MountTable, RingPermission, UnmountError, UnmountReason, unmount_within};

use crate::fail::{Exit, Fail};
use floe_mount::{
    MountUsers,
    control::{ProcessEnd, ServingProcess},
};

/// How long one unmount may take, with the end of the process that has served the mount. Such a process gives up requests that
/// are stuck after 2 s.
const TIME_MAX: Duration = Duration::from_secs(5);

/// How long the service may take, which waits for the end of the mount, too.
const SERVICE_TIME_MAX: Duration = Duration::from_secs(10);

/// How long a lazy unmount may take, which normally needs a fraction of a millisecond.
const LAZY_TIME_MAX: Duration = Duration::from_millis(500);

/// Unmount images, including those whose serving process is gone
///
/// Returns when the process that served a mount has ended and holds neither the image nor its file system, within 5 seconds at
/// the latest. With --lazy it does not wait.
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
    RingPermission::restore();
    for directory in &arguments.directories {
        let unmounted = match unmount_through_service(directory, detach) {
            Some(unmounted) => unmounted,
            None => unmount_and_wait(directory, detach).map_err(fail_of),
        };
        let Err(fail) = unmounted else { continue };
        if let Err(earlier) = std::mem::replace(&mut last, Err(fail)) {
            say!("floe: {earlier}");
        }
    }
    last
}

fn fail_of(error: UnmountError) -> Fail {
    match error {
        UnmountError { path, reason: UnmountReason::Busy } => Fail::failed(format!(
            "{path} is in use {}: end these processes, or run floe umount --lazy {path}",
            MountUsers::of(&path),
            path = path.shown()
        )),
        error => error.into(),
    }
}

/// Unmounts through the service; `None` if the mount is none of the service.
fn unmount_through_service(directory: &Path, detach: Detach) -> Option<Result<(), Fail>> {
    let table = MountTable::read().ok()?;
    let device = table.find(directory).ok()?.filter(|entry| entry.is_served())?.device;
    let mut service = ServiceClient::connect().ok()?;
    service.set_patience(SERVICE_TIME_MAX);
    let shown = directory.shown();
    match service.unmount(device, detach == Detach::Lazily) {
        Ok(true) => Some(Ok(())),
        Ok(false) => {
            say!("floe: {shown} is unmounted, but the service may still hold the image");
            Some(Ok(()))
        }
        Err(ClientError::Refused { kind: RefusalKind::Busy, message }) => {
            Some(Err(Fail::failed(format!("{message}: end these processes, or run floe umount --lazy {shown}"))))
        }
        // A service that has died, or is stopped, leaves its mounts.
        Err(ClientError::Refused { kind: RefusalKind::UnknownMount, .. } | ClientError::Lost { .. }) => None,
        Err(error) => Some(Err(error.into())),
    }
}

/// Unmounts. Unless that is done lazily, waits until the process that has served the mount has released the image.
fn unmount_and_wait(directory: &Path, detach: Detach) -> Result<(), UnmountError> {
    if detach == Detach::Lazily {
        return unmount_within(directory, detach, LAZY_TIME_MAX).map(drop);
    }
    let process = ServingProcess::of(directory);
    let until = Instant::now() + TIME_MAX;
    let is_done = unmount_within(directory, detach, TIME_MAX)?;
    let left = until.saturating_duration_since(Instant::now());
    let end = process.as_ref().map(|process| process.wait_for_end(left));
    if !is_done || end == Some(ProcessEnd::Stuck) {
        let directory = directory.shown();
        let id = process.map_or_else(String::new, |process| format!(" (process {})", process.id.as_raw_nonzero()));
        say!(
            "floe: {directory} is unmounted, but the program that served it{id} does not end: it may still hold the image"
        );
    }
    Ok(())
}
