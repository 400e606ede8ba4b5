//! A front that a service mounts, and keeps for the process that serves what is behind it.

use std::{
    fmt,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    sync::Arc,
};

use floe_ipc::send;
use rustix::net::SendFlags;

use crate::{
    directory::Directory,
    failure::MountFailure,
    front::{FrontOptions, HiddenMount, KeptFiles},
    front_readaheads::FrontReadaheads,
    front_transfer::{FrontReadahead, FrontTransfer},
    messages::Answer,
    options::KernelOptions,
    place::{Detach, Place},
};

/// A front that is to be mounted once its hidden mount is served.
#[derive(Debug)]
pub struct PendingFront {
    hidden: HiddenMount,
    directory: Directory,
    /// The kept image.
    metadata: OwnedFd,
    /// The original, if that is a device of the kept image.
    original: Option<OwnedFd>,
}

/// The order to mount a front, by the process that serves what is behind it.
pub struct FrontOrder {
    front: PendingFront,
    options: FrontOptions,
    kernel: KernelOptions,
    /// For the answer.
    socket: OwnedFd,
}

/// A front that was just mounted.
#[derive(Debug)]
pub struct MadeFront {
    place: Place,
    transfer: Option<(FrontTransfer, FrontReadahead)>,
    socket: OwnedFd,
}

impl PendingFront {
    /// The front for a hidden mount, from a kept image and its device, if it has one. It is mounted on `directory`.
    pub fn new(hidden: HiddenMount, directory: Directory, metadata: OwnedFd, original: Option<OwnedFd>) -> Self {
        Self { hidden, directory, metadata, original }
    }

    /// The device number of the hidden mount.
    pub(crate) fn hidden_device(&self) -> Option<(u32, u32)> {
        self.hidden.device()
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }
}

impl FrontOrder {
    pub(crate) fn new(front: PendingFront, options: FrontOptions, kernel: KernelOptions, socket: OwnedFd) -> Self {
        Self { front, options, kernel, socket }
    }

    /// Mounts the front. The kernel asks the process that serves the hidden mount, so this waits for it. If the kernel refuses, that
    /// process is told so.
    pub fn mount(self) -> Option<MadeFront> {
        let Self { front: PendingFront { hidden, directory, metadata, original }, options, kernel, socket } = self;
        let kept = KeptFiles { metadata: metadata.as_fd(), original: original.as_ref().map(AsFd::as_fd) };
        let front = hidden.detached_front(&kernel, options, Some(kept));
        match front.and_then(|front| front.attach(&directory)) {
            Ok((place, transfer)) => Some(MadeFront { place, transfer, socket }),
            Err(error) => {
                answer(&socket, &Answer::MountFailed { failure: MountFailure::front(error) }, &[]);
                None
            }
        }
    }
}

impl MadeFront {
    /// Where it is.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Reads ahead in the front, which has this number there, and tells the process that serves the hidden mount that it is mounted.
    pub fn tell(self, readaheads: Option<&Arc<FrontReadaheads>>, number: u64) {
        let Self { place, transfer, socket } = self;
        let numbers = place.to_numbers();
        let started = readaheads.zip(transfer).and_then(|(readaheads, (transfer, readahead))| {
            readaheads.add(number, place, readahead).ok()?;
            Some((readaheads.thread(), transfer.into_socket()))
        });
        let (thread, transfer) = started.unzip();
        let descriptors: Vec<BorrowedFd<'_>> = transfer.iter().map(AsFd::as_fd).collect();
        answer(&socket, &Answer::InFront { place: numbers, thread }, &descriptors);
    }

    /// Unmounts it again: nobody wants it any more.
    pub fn take_back(self) {
        let _ = self.place.unmount(Detach::Lazily);
    }
}

impl fmt::Debug for FrontOrder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("FrontOrder").field("front", &self.front).finish_non_exhaustive()
    }
}

/// Answers. A process that does not read its answers does not stop the service.
fn answer(socket: &OwnedFd, answer: &Answer, descriptors: &[BorrowedFd<'_>]) {
    let _ = send(socket, answer, descriptors, SendFlags::DONTWAIT);
}
