//! Mounts through the service.

use floe::Offset;
use floe_image::ShownName;
use floe_ipc::{ClientError, MountFiles, ServiceClient, protocol::RefusalKind};
use floe_mount::{
    Request,
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
    let mounted = match service.mount(&files, &option_text(lists, settings)) {
        // It has other options than this program, or mounts for another user.
        Err(ClientError::Refused { kind: RefusalKind::Usage, .. }) if !is_needed => return Ok(None),
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
