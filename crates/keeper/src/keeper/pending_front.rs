//! A front that a service mounts, and keeps for the process that serves what is behind it.

use std::{
    fmt, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    sync::Arc,
};

use floe_ipc::send;
use rustix::net::SendFlags;

use crate::{
    detached::DetachedMount,
    directory::Directory,
    failure::MountFailure,
    front::{DetachedFront, FrontOptions, HiddenMount, KeptFiles},
    front_readaheads::FrontReadaheads,
    front_transfer::{FrontReadahead, FrontTransfer},
    messages::Answer,
    options::KernelOptions,
    place::{Detach, Place},
};

/// Both ends of the transfer into a front, if there is one.
type Transfer = Option<(FrontTransfer, FrontReadahead)>;

/// A front that is to be mounted once its hidden mount is served.
#[derive(Debug)]
pub struct PendingFront {
    hidden: HiddenMount,
    target: FrontTarget,
    /// The kept image.
    metadata: OwnedFd,
    /// The original, if that is a device of the kept image.
    original: Option<OwnedFd>,
}

/// Where a front is mounted.
#[derive(Debug)]
pub enum FrontTarget {
    /// On a directory.
    Directory(Directory),
    /// On no directory yet: another user is to have it.
    Detached {
        /// The path of the directory to which it will be attached.
        path: PathBuf,
        /// The user namespace whose users own its files; `None` for the owners in the image.
        owners: Option<OwnedFd>,
    },
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
    transfer: Transfer,
    /// The mount, if it is attached to no directory.
    detached: Option<DetachedMount>,
    socket: OwnedFd,
}

impl PendingFront {
    /// The front for a hidden mount, from a kept image and its device, if it has one.
    pub fn new(hidden: HiddenMount, target: FrontTarget, metadata: OwnedFd, original: Option<OwnedFd>) -> Self {
        Self { hidden, target, metadata, original }
    }

    /// The device number of the hidden mount.
    pub(crate) fn hidden_device(&self) -> Option<(u32, u32)> {
        self.hidden.device()
    }

    pub(crate) fn directory(&self) -> &Path {
        match &self.target {
            FrontTarget::Directory(directory) => directory.path(),
            FrontTarget::Detached { path, .. } => path,
        }
    }
}

impl FrontTarget {
    /// Puts a front there.
    fn put(&self, front: DetachedFront) -> io::Result<(Place, Transfer, Option<DetachedMount>)> {
        match self {
            Self::Directory(directory) => {
                let (place, transfer) = front.attach(directory)?;
                Ok((place, transfer, None))
            }
            Self::Detached { path, owners } => {
                if let Some(users) = owners {
                    front.map_owners(users.as_fd())?;
                }
                // A clone for the readahead would keep the front alive: its end in another mount namespace is not reported.
                let place = Place::of_detached(front.as_fd(), path);
                Ok((place, None, Some(front.into())))
            }
        }
    }
}

impl FrontOrder {
    pub(crate) fn new(front: PendingFront, options: FrontOptions, kernel: KernelOptions, socket: OwnedFd) -> Self {
        Self { front, options, kernel, socket }
    }

    /// Mounts the front. The kernel asks the process that serves the hidden mount, so this waits for it. If the kernel refuses, that
    /// process is told so.
    pub fn mount(self) -> Option<MadeFront> {
        let Self { front: PendingFront { hidden, target, metadata, original }, options, kernel, socket } = self;
        let kept = KeptFiles { metadata: metadata.as_fd(), original: original.as_ref().map(AsFd::as_fd) };
        let front = hidden.detached_front(&kernel, options, Some(kept));
        match front.and_then(|front| target.put(front)) {
            Ok((place, transfer, detached)) => Some(MadeFront { place, transfer, detached, socket }),
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

    /// Whether something can be read ahead there.
    pub fn can_read_ahead(&self) -> bool {
        self.transfer.is_some()
    }

    /// Takes the mount, if it is attached to no directory yet.
    pub fn take_detached(&mut self) -> Option<DetachedMount> {
        self.detached.take()
    }

    /// Reads ahead in the front, which has this number there, and tells the process that serves the hidden mount that it is mounted.
    pub fn tell(self, readaheads: Option<&Arc<FrontReadaheads>>, number: u64) {
        let Self { place, transfer, socket, .. } = self;
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
