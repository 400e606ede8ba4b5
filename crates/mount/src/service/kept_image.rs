//! A mount, as the broker keeps it.

use std::{
    fs::File,
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{ffi::OsStrExt, net::UnixListener},
    },
    sync::mpsc::Sender,
};

use floe_ipc::protocol::{MountRequest, RefusalKind, ServedMount};
use floe_keeper::{KeeperSocket, KeptMount, Place};

use super::messages::Attachment;
use crate::control;

/// A mount, with all that a domain needs to serve it.
pub(super) struct KeptImage {
    /// The number of the domain that serves it.
    pub(super) domain: u64,
    pub(super) stage: Stage,
    pub(super) keeper: KeptMount,
    pub(super) request: MountRequest,
    pub(super) files: KeptFiles,
    /// The format of the image.
    pub(super) format: String,
    /// Remarks while it is attached, for its client.
    pub(super) remarks: Vec<String>,
    /// Told when the mount has ended, and whether the image is closed.
    pub(super) end_waiters: Vec<Sender<bool>>,
    /// The name of its control socket.
    pub(super) control_name: control::Server,
}

/// The descriptors of a mount.
pub(super) struct KeptFiles {
    /// The connection to the kernel.
    pub(super) device: OwnedFd,
    /// The state of the mount.
    pub(super) state: File,
    /// Its control socket.
    pub(super) control: UnixListener,
    pub(super) image: OwnedFd,
    pub(super) devices: Vec<OwnedFd>,
}

/// Why a domain does not serve a mount.
pub(super) type Refusal = (RefusalKind, String);

/// How far a mount has come.
pub(super) enum Stage {
    /// A domain is to serve it: a new mount, or one that is continued.
    Attaching(Sender<Result<(), Refusal>>),
    /// A domain serves it.
    Served,
    /// Its domain has died; another one is started.
    Orphaned,
}

impl KeptImage {
    /// The message that makes a domain serve it.
    pub(super) fn attachment(&self, number: u64, is_continued: bool) -> Attachment {
        let MountRequest { image, devices, options } = self.request.clone();
        let directory = self.place().directory().as_os_str().as_bytes().to_vec();
        Attachment { number, image, devices, directory, options, place: self.place().to_numbers(), is_continued }
    }

    /// Where it is.
    pub(super) fn place(&self) -> &Place {
        self.keeper.place()
    }

    /// Whether its files have this device number.
    pub(super) fn has_device(&self, [major, minor]: [u32; 2]) -> bool {
        self.place().device() == Some((major, minor))
    }

    /// The mount for clients. `process` is its domain.
    pub(super) fn shown(&self, number: u64, process: u32) -> ServedMount {
        let (major, minor) = self.place().device().unwrap_or_default();
        ServedMount {
            number,
            image: self.request.image.clone(),
            directory: self.place().directory().as_os_str().as_bytes().to_vec(),
            format: self.format.clone(),
            device: [major, minor],
            process,
        }
    }
}

impl KeptFiles {
    /// Copies of the descriptors, so that a message can be sent without the lock of the mounts.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub(super) fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            device: self.device.try_clone()?,
            state: self.state.try_clone()?,
            control: self.control.try_clone()?,
            image: self.image.try_clone()?,
            devices: self.devices.iter().map(OwnedFd::try_clone).collect::<io::Result<_>>()?,
        })
    }

    /// The descriptors of a message with the attachment, in their order.
    pub(super) fn with_keeper<'files>(&'files self, keeper: &'files KeeperSocket) -> Vec<BorrowedFd<'files>> {
        let Self { device, state, control, image, devices } = self;
        let first = [device.as_fd(), state.as_fd(), keeper.as_fd(), control.as_fd(), image.as_fd()];
        first.into_iter().chain(devices.iter().map(AsFd::as_fd)).collect()
    }
}
