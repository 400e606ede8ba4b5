//! The connection of a mount to the kernel, before it is served.

use std::{io, num::NonZero, os::fd::OwnedFd, path::PathBuf};

use floe_fuse_wire::{Agreement, Channel};
use floe_keeper::{AutoUnmount, Mounted, Place};

use super::{
    MountStart,
    error::MountError,
    handover::{ConnectionTerms, Inherited, PausedConnection},
    mountpoint::Mountpoint,
};
use crate::{MountOptions, MountSetup};

/// A mount that is not served yet.
pub(super) struct Connected {
    pub(super) link: Link,
    /// `None` if another program has mounted, and for a front that is still to be mounted.
    pub(super) place: Option<Place>,
    pub(super) auto_unmount: Option<AutoUnmount>,
    /// The directory on which a front is to be mounted once the connection is served.
    pub(super) front_directory: Option<PathBuf>,
}

/// The descriptors of a connection to the kernel.
pub(super) struct Link {
    pub(super) channel: Channel,
    /// Additional channels for session threads with their own descriptors.
    pub(super) of_threads: Vec<Channel>,
    /// Additional channels that no thread uses.
    spare: Vec<Channel>,
    /// The terms, if another process has agreed upon them.
    pub(super) agreement: Option<Agreement>,
    /// Whether another process has served it, or still does.
    pub(super) is_inherited: bool,
}

impl Link {
    /// A new connection.
    fn new(device: OwnedFd) -> Self {
        let (of_threads, spare) = (Vec::new(), Vec::new());
        Self { channel: Channel::new(device), of_threads, spare, agreement: None, is_inherited: false }
    }

    /// The connection of another process.
    fn inherited(devices: Vec<OwnedFd>, agreement: Agreement, options: &MountOptions) -> Result<Self, MountError> {
        let mut channels = devices.into_iter().map(Channel::new);
        let none = || MountError::Handshake(io::Error::other("no descriptor of /dev/fuse was passed on"));
        let channel = channels.next().ok_or_else(none)?;
        let thread_count = if options.clone_fd { NonZero::get(options.threads) } else { 0 };
        let of_threads: Vec<_> = channels.by_ref().take(thread_count).collect();
        of_threads.iter().try_for_each(Channel::set_nonblocking).map_err(MountError::Handshake)?;
        let (spare, agreement) = (channels.collect(), Some(agreement));
        Ok(Self { channel, of_threads, spare, agreement, is_inherited: true })
    }

    /// What stays of it until it is served.
    pub(super) fn paused(&self) -> PausedConnection {
        PausedConnection { channel: self.channel.clone(), _spare: self.spare.clone() }
    }
}

/// Mounts, or takes the connection over.
///
/// # Errors
/// The mount is refused.
pub(super) fn connect(start: MountStart, setup: &MountSetup) -> Result<Connected, MountError> {
    let MountSetup { options, handles, .. } = setup;
    let permit_rings = |is_given| handles.rings.iter().for_each(|rings| rings.permit(is_given));
    // For a mount that the keeper has made before.
    let ask_for_rings = || {
        if let Some(rings) = &handles.rings {
            rings.permit_with(handles.keeper.as_ref().and_then(|keeper| keeper.permit_rings()));
        }
    };
    let new = |device| Connected { link: Link::new(device), place: None, auto_unmount: None, front_directory: None };
    match start {
        MountStart::Mountpoint(mountpoint) => {
            let directory = match mountpoint {
                Mountpoint::Descriptor(device) => {
                    permit_rings(false);
                    return Ok(new(device));
                }
                Mountpoint::Directory(directory) => directory,
            };
            let mounted = match &handles.keeper {
                Some(keeper) => keeper.mount(directory.path(), handles.rings.is_some()),
                // Only a keeper gives a permission to this mount alone.
                None => Mounted::on(&directory, &options.kernel).map(|mounted| (mounted, false)),
            };
            let (Mounted { device, auto_unmount, place }, has_permission) =
                mounted.map_err(|failure| MountError::of(directory.path(), failure))?;
            permit_rings(has_permission);
            Ok(Connected { place: Some(place), auto_unmount, ..new(device) })
        }
        MountStart::Made(mounted) => {
            ask_for_rings();
            let Mounted { device, auto_unmount, place } = *mounted;
            Ok(Connected { place: Some(place), auto_unmount, ..new(device) })
        }
        MountStart::Inherited(inherited) | MountStart::InheritedFront { inherited, .. } => {
            let Inherited { devices, auto_unmount, directory, place, terms } = inherited;
            let place = match &handles.keeper {
                _ if place.is_some() => place.unwrap_or_else(|| Place::with_id(None, &directory)),
                Some(keeper) => {
                    keeper.adopt(&directory).map_err(|error| MountError::Refused { path: directory.clone(), error })?
                }
                None => Place::with_id(None, &directory),
            };
            let link = Link::inherited(devices, terms.agreement(), options)?;
            let auto_unmount = auto_unmount.map(AutoUnmount::new);
            Ok(Connected { link, place: Some(place), auto_unmount, front_directory: None })
        }
        MountStart::Front { directory, hidden: Some((device, terms)), .. } => {
            ask_for_rings();
            let mut connected = Connected { front_directory: Some(directory), ..new(device) };
            connected.link.agreement = terms.map(ConnectionTerms::agreement);
            Ok(connected)
        }
        MountStart::Front { directory, .. } => {
            let no_keeper = || MountError::Front("it needs a keeper, a process that mounts it".to_owned().into());
            let keeper = handles.keeper.as_ref().ok_or_else(no_keeper)?;
            let hidden = keeper.mount_hidden(handles.rings.is_some());
            let (device, has_permission) = hidden.map_err(|failure| MountError::of(&directory, failure))?;
            permit_rings(has_permission);
            Ok(Connected { front_directory: Some(directory), ..new(device) })
        }
    }
}
