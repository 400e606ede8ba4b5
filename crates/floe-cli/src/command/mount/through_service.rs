//! Mounts through the service.

use std::os::fd::AsFd;

use floe::Offset;
use floe_fuse::{MountError, Mountpoint};
use floe_image::ShownName;
use floe_ipc::{ClientError, MountFiles, ServiceClient, ServiceMount, protocol::RefusalKind};
use floe_keeper::{Access, Detach, Directory, KernelOptions, LaunchWalker, Mounted, attach};
use floe_mount::{
    Failure, Front, Request,
    daemon::is_background,
    handover::is_upgrade,
    launch::ProfileChoice,
    options::{ServiceChoice, Settings},
    service::check_mount,
};

use super::walk;
use crate::{
    fail::{Exit, Fail},
    output::remark,
    remote::is_url,
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
    let files = match image.to_str().filter(|_| is_url(image)) {
        Some(url) => MountFiles::remote(url, directory)?,
        None => MountFiles::open(image, &settings.open.devices, directory)?,
    };
    let walk = match &settings.profile {
        ProfileChoice::File(_) if service.is_of_another_user() => LaunchWalker::sockets().ok(),
        _ => None,
    };
    let (walk, walker) = walk.unzip();
    let files = match &settings.profile {
        ProfileChoice::File(profile) => files.with_profile(profile, walk)?,
        _ => files,
    };
    let options = option_text(lists, settings);
    let offer = service.offer()?;
    let mounted = match offer.mounts {
        true => service.mount(&files, &options),
        false => match attach_front(&mut service, request, &files, &options, offer.fronts)? {
            Err(ClientError::Refused { kind: RefusalKind::NotOffered, .. }) if settings.front != Front::Kernel => {
                mount_for_service(&mut service, request, files, &options)?
            }
            mounted => mounted,
        },
    };
    let mounted = match mounted {
        // It has other options than this program, or does not mount for this user, or not as much.
        Err(ClientError::Refused { kind: RefusalKind::Usage | RefusalKind::NotOffered, .. }) if !is_needed => {
            return Ok(None);
        }
        mounted => mounted?,
    };
    if let Some(walker) = walker
        && let Err(error) = walk::start(directory, walker)
    {
        say!("floe: the mount works, but no launch is replayed: {error}");
    }
    for line in &mounted.remarks {
        say!("floe: {line}");
    }
    if says_ready {
        let (format, directory) = (&mounted.format, mounted.directory.shown());
        remark(format_args!("{} ({format}) is mounted on {directory}\n", image.shown()));
    }
    Ok(Some(Exit::Done.code()))
}

/// Attaches the kernel's EROFS that the service has mounted, in a mount namespace of this user. The service maps the owners of its files
/// to this user namespace.
///
/// # Errors
/// The kernel refuses. The inner error is that of the service ([`RefusalKind::NotOffered`]: there are other ways); nothing stays mounted.
fn attach_front(
    service: &mut ServiceClient,
    request: &Request,
    files: &MountFiles,
    options: &str,
    is_offered: bool,
) -> Result<Result<ServiceMount, ClientError>, Fail> {
    let Request { directory, settings, .. } = request;
    let not_offered =
        |message: &str| Ok(Err(ClientError::Refused { kind: RefusalKind::NotOffered, message: message.to_owned() }));
    if settings.front == Front::Fuse {
        return not_offered("front=fuse is requested");
    }
    if !is_offered {
        return not_offered("front=kernel is root's here: root permits it to users with floe serve --users=fronts");
    }
    let mountpoint = mountpoint_of(request)?;
    let path = mountpoint.path().to_owned();
    let access = access_of(&settings.mount.kernel);
    let (mounted, mount) = match service.mount_detached(files, &path, &format!("{options},access={access}")) {
        Ok(mounted) => mounted,
        Err(error) => return Ok(Err(error)),
    };
    // Without the descriptor, the mount ends.
    attach(mount.as_fd(), &mountpoint)
        .map_err(|error| Fail::failed(format!("cannot mount on {}: {error}", directory.shown())))?;
    Ok(Ok(mounted))
}

/// The directory of a request.
fn mountpoint_of(request: &Request) -> Result<Directory, Fail> {
    match Mountpoint::find(&request.directory).map_err(|error| Fail::from(Failure::from(error)))? {
        Mountpoint::Directory(mountpoint) => Ok(mountpoint),
        Mountpoint::Descriptor(_) => Err(Fail::usage("the service needs a directory to mount on")),
    }
}

/// Who may enter a mount with these options. The service must know it.
fn access_of(kernel: &KernelOptions) -> &'static str {
    match kernel.access() {
        Access::Owner => "private",
        Access::OwnerAndRoot => "allow-root",
        Access::All => "allow-other",
    }
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
    let settings = &request.settings;
    let failed = |error: MountError| Fail::from(Failure::from(error));
    let mountpoint = mountpoint_of(request)?;
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
    let access = access_of(&kernel);
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
