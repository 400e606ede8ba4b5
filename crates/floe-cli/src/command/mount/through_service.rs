//! Mounts through the service.

use floe::Offset;
use floe_fuse::{MountError, Mountpoint};
use floe_image::ShownName;
use floe_ipc::{ClientError, MountFiles, ServiceClient, ServiceMount, protocol::RefusalKind};
use floe_keeper::{Access, Detach, KernelOptions, Mounted};
use floe_mount::{
    Failure, Request,
    daemon::is_background,
    handover::is_upgrade,
    options::{ServiceChoice, Settings},
    service::check_mount,
};

use crate::{
    fail::{Exit, Fail},
    output::remark,
};

/// Mounts through the service if the settings ask for that. `lists` are the options as the user gave them. Says that the mount
/// works if it `says_ready`. Returns the exit code; `None` if a process of its own is to serve the mount.
///
/// # Errors
/// The service is needed but does not listen, or it cannot mount the image.
pub(crate) fn mount_through_service(request: &Request, lists: &[String], says_ready: bool) -> Result<Option<u8>, Fail> {
    let Request { image, directory, settings, .. } = request;
    let is_needed = match settings.service {
        // The background process of a mount without a service, and its next process.
        _ if is_background() || is_upgrade() => return Ok(None),
        ServiceChoice::Off => return Ok(None),
        ServiceChoice::Auto => false,
        ServiceChoice::On => true,
    };
    if let Err(failure) = check_mount(image, settings) {
        return if is_needed { Err(failure.into()) } else { Ok(None) };
    }
    let mut service = match ServiceClient::connect() {
        Err(_) if !is_needed => return Ok(None),
        connected => connected?,
    };
    let files = MountFiles::open(image, &settings.open.devices, directory)?;
    let options = option_text(lists, settings);
    let mounted = match service.offer()?.mounts {
        true => service.mount(&files, &options),
        false => mount_for_service(&mut service, request, files, &options)?,
    };
    let mounted = match mounted {
        // It has other options than this program, or does not mount for this user, or not as much.
        Err(ClientError::Refused { kind: RefusalKind::Usage | RefusalKind::NotOffered, .. }) if !is_needed => {
            return Ok(None);
        }
        mounted => mounted?,
    };
    for line in &mounted.remarks {
        say!("floe: {line}");
    }
    if says_ready {
        let (format, directory) = (&mounted.format, mounted.directory.shown());
        remark(format_args!("{} ({format}) is mounted on {directory}\n", image.shown()));
    }
    Ok(Some(Exit::Done.code()))
}

/// Mounts where the service may not: in a mount namespace of this user, who has all rights over mounts there. The service serves the
/// mount, and has no more rights over it than over any file that this process has opened.
///
/// # Errors
/// The kernel refuses the mount. The inner error is that of the service; nothing stays mounted.
fn mount_for_service(
    service: &mut ServiceClient,
    request: &Request,
    files: MountFiles,
    options: &str,
) -> Result<Result<ServiceMount, ClientError>, Fail> {
    let Request { directory, settings, .. } = request;
    let failed = |error: MountError| Fail::from(Failure::from(error));
    let Mountpoint::Directory(mountpoint) = Mountpoint::find(directory).map_err(failed)? else {
        return Err(Fail::usage("the service needs a directory to mount on"));
    };
    let source = || request.shown_image().to_string_lossy().into_owned();
    let kernel = KernelOptions {
        source: settings.source.clone().unwrap_or_else(source),
        access: Some(settings.mount.kernel.access()),
        ..settings.mount.kernel.clone()
    };
    let path = mountpoint.path().to_owned();
    let mounted = Mounted::on(&mountpoint, &kernel).map_err(|failure| failed(MountError::of(&path, failure)))?;
    let Mounted { device, place, .. } = mounted;
    let Some(number) = place.device() else {
        let _ = place.unmount(Detach::Lazily);
        return Err(Fail::failed(format!("{}: the kernel does not tell the number of the mount", path.shown())));
    };
    // The other process must know who may enter.
    let access = match kernel.access() {
        Access::Owner => "private",
        Access::OwnerAndRoot => "allow-root",
        Access::All => "allow-other",
    };
    let served = service.mount(&files.with_connection(&path, device, number), &format!("{options},access={access}"));
    if served.is_err() {
        let _ = place.unmount(Detach::Lazily);
    }
    Ok(served)
}

/// The options for the service: those of the user, and the offset that may have an option of its own on the command line.
fn option_text(lists: &[String], settings: &Settings) -> String {
    let offset = match settings.open.offset {
        Offset::None => None,
        Offset::At(at) => Some(format!("offset={at}")),
        Offset::Auto => Some("offset=auto".to_owned()),
    };
    lists.iter().cloned().chain(offset).collect::<Vec<_>>().join(",")
}

impl From<ClientError> for Fail {
    fn from(error: ClientError) -> Self {
        let exit = match &error {
            ClientError::Refused { kind: RefusalKind::Usage, .. } | ClientError::TooLong => Exit::Usage,
            ClientError::Refused { kind: RefusalKind::BadImage, .. } => Exit::BadImage,
            _ => Exit::Failed,
        };
        Self::failed(error.to_string()).with_exit(exit)
    }
}
