//! A mount that a service keeps for the process that serves it.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

use floe_ipc::{receive_alone, send};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socketpair};

use super::{
    Keeper,
    pending_front::{FrontOrder, MadeFront, PendingFront},
    ring_order::RingOrder,
    service::Service,
};
use crate::{
    abort::{Abort, FuseConnections},
    messages::Request,
    options::KernelOptions,
    place::Place,
    schedule::Schedule,
    settings::KeeperSettings,
};

/// A mount that a process has made and keeps for another one, which serves it. Many of them need no process and no thread of their
/// own: [`KeptMount::answer`] is called when the [socket](KeptMount::socket) is readable. The other process has a [`Keeper`] for
/// it, and neither mounts nor unmounts.
pub struct KeptMount {
    service: Service,
    socket: OwnedFd,
    place: Place,
    options: KernelOptions,
    schedule: Schedule,
    may_walk: bool,
    /// Whether the other process may ask for rings. It may once.
    may_have_rings: bool,
    /// The front that is to be mounted.
    front: Option<PendingFront>,
    /// Aborts the hidden connection of a front that is never mounted: the other process may not serve it.
    unmounted: Option<AbortOnDrop>,
}

/// What came of a request of the process that serves a mount.
#[derive(Debug)]
pub enum KeptAnswer {
    /// It has its answer.
    Answered,
    /// It asks for the front, which must be mounted on another thread: the kernel asks that process.
    Front(FrontOrder),
    /// It asks for rings, which must be permitted on another thread: this may wait for other mounts.
    Rings(RingOrder),
    /// The process has ended or breaks the protocol.
    Ended,
}

/// Aborts a connection when it is dropped.
struct AbortOnDrop(Option<Abort>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        if let Some(abort) = &mut self.0 {
            abort.now();
        }
    }
}

/// The socket of a [`Keeper`], for the process that serves the mount.
#[derive(Debug)]
pub struct KeeperSocket(OwnedFd);

impl KeptMount {
    /// Keeps the mount at a place. With `may_walk`, the other process may have the names of a launch looked up.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub fn new(
        place: Place,
        options: KernelOptions,
        schedule: Schedule,
        may_walk: bool,
    ) -> io::Result<(Self, KeeperSocket)> {
        let (ours, theirs) = pair()?;
        let service = Service::of_kept(place.clone());
        let (may_have_rings, front, unmounted) = (false, None, None);
        let kept = Self { service, socket: ours, place, options, schedule, may_walk, may_have_rings, front, unmounted };
        Ok((kept, KeeperSocket(theirs)))
    }

    /// Keeps a front that is still to be mounted: the other process serves the hidden mount, and then asks for the front. Until
    /// that is [mounted](KeptMount::note_front), nothing is at the place, and `connections` has the hidden one.
    ///
    /// # Errors
    /// There are no descriptors left, or this process could not abort the connection.
    pub fn of_front(
        front: PendingFront,
        options: KernelOptions,
        schedule: Schedule,
        may_walk: bool,
        connections: &FuseConnections,
    ) -> io::Result<(Self, KeeperSocket)> {
        let device = front.hidden_device().ok_or(io::ErrorKind::Unsupported)?;
        let unmounted = AbortOnDrop(Some(Abort::open(device, connections)?));
        let place = Place::nowhere(front.directory().to_owned());
        let (kept, socket) = Self::new(place, options, schedule, may_walk)?;
        Ok((Self { front: Some(front), unmounted: Some(unmounted), ..kept }, socket))
    }

    /// Permits rings to the connection when the other process asks for them.
    pub fn permit_rings(&mut self) {
        self.may_have_rings = true;
    }

    /// Notes that the front is mounted.
    pub fn note_front(&mut self, made: &MadeFront) {
        self.place = made.place().clone();
        self.service = Service::of_kept(self.place.clone());
        if let Some(mut unmounted) = self.unmounted.take() {
            unmounted.0 = None;
        }
    }

    /// Keeps the same mount for a process that takes the place of the other one.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub fn renew(&mut self) -> io::Result<KeeperSocket> {
        let (ours, theirs) = pair()?;
        // The thread that looks up names ends with its socket.
        (self.service, self.socket) = (Service::of_kept(self.place.clone()), ours);
        (self.may_walk, self.may_have_rings) = (false, false);
        Ok(KeeperSocket(theirs))
    }

    /// The place of the mount.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// The socket that is readable when there is a request, and when the other process has ended.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Answers one request. After [`KeptAnswer::Ended`], it is not to be called again before [`KeptMount::renew`].
    pub fn answer(&mut self) -> KeptAnswer {
        let Ok(Some(request)) = receive_alone(&self.socket, RecvFlags::DONTWAIT) else { return KeptAnswer::Ended };
        if let Request::MountFront { options } = request
            && options.is_kept
            && let Some(front) = self.front.take()
        {
            return match self.socket.try_clone() {
                Ok(socket) => KeptAnswer::Front(FrontOrder::new(front, options, self.options.clone(), socket)),
                Err(_) => KeptAnswer::Ended,
            };
        }
        if request == Request::PermitRings && std::mem::take(&mut self.may_have_rings) {
            return self
                .socket
                .try_clone()
                .map_or(KeptAnswer::Ended, |socket| KeptAnswer::Rings(RingOrder::new(socket)));
        }
        let settings = KeeperSettings {
            directory: Some(self.place.directory()),
            mountpoint: None,
            options: &self.options,
            users_of: |_: &Path| String::new(),
            schedule: &self.schedule,
            temporary_directory: None,
            adopted: None,
            kept_front: None,
            may_have_front: false,
            must_have_front: true,
            may_permit_rings: false,
            may_unmount: false,
            may_walk: self.may_walk,
        };
        let (answer, descriptors) = self.service.answer(request, settings);
        let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
        // A process that does not read its answers does not stop the service.
        match send(&self.socket, &answer, &descriptors, SendFlags::DONTWAIT) {
            Ok(()) => KeptAnswer::Answered,
            Err(_) => KeptAnswer::Ended,
        }
    }
}

impl KeeperSocket {
    /// The keeper at the other end of a socket that this process was given.
    pub fn new(socket: OwnedFd) -> Self {
        Self(socket)
    }

    /// The handle for requests.
    pub fn into_keeper(self) -> Keeper {
        Keeper::over(self.0)
    }

    pub(super) fn into_inner(self) -> OwnedFd {
        self.0
    }
}

impl AsFd for KeeperSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

#[cfg(test)]
mod tests {
    use std::{path::PathBuf, sync::Arc, thread};

    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;
    use crate::{directory::Directory, place::Detach};

    #[test]
    fn the_other_process_gets_answers_but_cannot_unmount() {
        let directory = tempfile::tempdir().expect("a directory");
        let directory = Directory::open(directory.path()).expect("it is there");
        let schedule: Schedule = Arc::new(|_, _| {});
        let kept = KeptMount::new(Place::on(&directory), KernelOptions::default(), schedule, false);
        let (mut kept, socket) = kept.expect("sockets");
        let mut next = Some(socket);
        for round in 0..2 {
            let socket = next.take().unwrap_or_else(|| kept.renew().expect("sockets"));
            let path = PathBuf::from(directory.path());
            let asking = thread::spawn(move || {
                let keeper = socket.into_keeper();
                let is_refused = keeper.unmount(&path, Detach::Lazily).is_err()
                    && keeper.walk().is_err()
                    && keeper.permit_rings().is_none();
                (is_refused, keeper.confirm_mount().is_ok(), keeper.is_administrator(0))
            });
            while !asking.is_finished() {
                let mut ready = [PollFd::from_borrowed_fd(kept.socket(), PollFlags::IN)];
                poll(&mut ready, None).expect("a request, or the end");
                if matches!(kept.answer(), KeptAnswer::Ended) {
                    break;
                }
            }
            assert_eq!(asking.join().expect("no panic"), (true, true, false), "round {round}");
        }
    }
}
