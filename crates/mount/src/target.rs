//! The target of a request: a directory to mount on, or a mount to take over.

use std::{
    fs::File,
    path::{Path, PathBuf},
};

use floe_fuse::Mountpoint;
use floe_keeper::{Directory, Mounted};

use crate::{
    failure::Failure,
    front::Hidden,
    handover::{ServiceManager, Taken},
    transport::Continuity,
};

/// What a request mounts on, or takes over.
pub(crate) enum Target {
    /// A mountpoint without a mount of this program, and its path for users.
    New(Mountpoint, PathBuf),
    /// A FUSE mount that the service has made, and why that is no front.
    Made(Box<Mounted>, String),
    /// The connection behind a front that the service is to mount.
    Hidden(Box<Hidden>),
    /// The mount of another process. It may have no server until this process has taken it over, so nothing may access it
    /// before.
    Taken(Box<Taken>),
}

impl Target {
    /// Finds what is at `directory`.
    ///
    /// # Errors
    /// It is no directory, or the process that serves the mount refuses to hand it over.
    pub(crate) fn find(directory: &Path, manager: Option<&ServiceManager>) -> Result<Self, Failure> {
        if let Some(taken) = Taken::find(directory, manager)? {
            return Ok(Self::Taken(Box::new(taken)));
        }
        let mountpoint = Mountpoint::find(directory)?;
        let shown = match &mountpoint {
            // The target of `/dev/fd/N` is the device.
            Mountpoint::Descriptor(_) => directory.to_owned(),
            Mountpoint::Directory(directory) => directory.path().to_owned(),
        };
        Ok(Self::New(mountpoint, shown))
    }

    /// The mountpoint as users see it.
    pub(crate) fn shown(&self) -> &Path {
        match self {
            Self::New(_, shown) => shown,
            Self::Made(mounted, _) => mounted.place.directory(),
            Self::Hidden(hidden) => &hidden.directory,
            Self::Taken(taken) => taken.directory(),
        }
    }

    /// The directory to mount on, if this process mounts on one.
    pub(crate) fn directory(&self) -> Option<&Directory> {
        match self {
            Self::New(Mountpoint::Directory(directory), _) => Some(directory),
            _ => None,
        }
    }

    /// The mount that is taken over.
    pub(crate) fn taken(&self) -> Option<&Taken> {
        match self {
            Self::New(..) | Self::Made(..) | Self::Hidden(_) => None,
            Self::Taken(taken) => Some(taken),
        }
    }

    /// Takes the memory file with the state of the mount that is taken over.
    pub(crate) fn take_state_file(&mut self) -> Option<File> {
        match self {
            Self::New(..) | Self::Made(..) | Self::Hidden(_) => None,
            Self::Taken(taken) => taken.take_state_file(),
        }
    }

    /// Whether the mount outlives its serving process.
    pub(crate) fn continuity(&self, manager: Option<&ServiceManager>) -> Continuity {
        match (self, manager) {
            (Self::Taken(_), _) => Continuity::TakenOver,
            (_, Some(_)) => Continuity::Managed,
            (_, None) => Continuity::Unneeded,
        }
    }
}
