//! The keeper: an unconfined process that mounts and unmounts for the one that serves the mount.

mod incoming;
mod kept_mount;
mod pending_front;
mod ring_order;
mod service;
mod standby;

use std::{
    collections::VecDeque,
    ffi::CStr,
    fmt, io,
    os::fd::{AsFd, AsRawFd, OwnedFd, RawFd},
    path::Path,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use floe_ipc::{receive, send};
use floe_sync::Mutex;
use rustix::{
    fs::{Mode, OFlags, open},
    net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socketpair},
    process::{Pid, WaitOptions, getpid, waitpid},
};

use self::service::Service;
pub use self::{
    kept_mount::{KeeperSocket, KeptAnswer, KeptMount},
    pending_front::{FrontOrder, FrontTarget, MadeFront, PendingFront},
    ring_order::RingOrder,
};
use crate::{
    directory::Directory,
    failure::{MountFailure, UnmountError, UnmountReason},
    fork_sys,
    front::FrontOptions,
    front_transfer::FrontTransfer,
    fusermount::AutoUnmount,
    launch_walk::LaunchWalk,
    messages::{Answer, Request},
    mount::Mounted,
    parent_sys::{LifeMark, Parent},
    place::{Detach, Place},
    relay::Relay,
    serving_thread::may_wait_for_mount,
    settings::KeeperSettings,
};

/// The names of the processes.
const NAME: &CStr = c"floe-keeper";
const STANDBY_NAME: &CStr = c"floe-standby";

/// How long a keeper may take to end: the kernel may wait for the last requests of its mounts.
const END_TIME_MAX: Duration = Duration::from_secs(2);

/// The pause between two checks whether the keeper has ended.
const END_INTERVAL: Duration = Duration::from_millis(1);

/// A handle to the keeper, a process that mounts and unmounts for the process that reads the image, which is usually
/// confined. The keeper is not confined, and parses no byte of the image. It makes or adopts one mount, once, unmounts only
/// that mount, and ends with the process that it serves. A second process stands by, and takes its place if it is killed.
pub struct Keeper {
    /// The sockets of the keeper and of its standby, in this order. Locked for one request and its answer; empty once
    /// the keepers have ended.
    sockets: Mutex<VecDeque<OwnedFd>>,
    processes: Vec<Pid>,
}

impl Keeper {
    /// Starts a keeper, which also serves the relays. This process must have no other thread.
    ///
    /// # Errors
    /// Other threads run, or the process or its socket cannot be created.
    pub fn start(settings: KeeperSettings<'_>, relays: Vec<Relay>) -> io::Result<Arc<Self>> {
        let pair = || socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let ((ours, theirs), (our_standby, their_standby)) = (pair()?, pair()?);
        let (observing, noting) = standby::notes()?;
        // The kernel may drop the inode of `/proc/PID` from its cache. The sandbox's rule for it would not apply to the new
        // inode, so the directory stays open in the keeper and its standby.
        let own = open("/proc/self", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok();
        let mountpoint = settings.mountpoint.map(Directory::try_clone).transpose()?;
        let mark = LifeMark::of_this_thread().ok();
        let parent = || Parent::new(mark?).ok().map(Arc::new);
        let served = getpid();
        let directory = mountpoint.as_ref().map(|directory| directory.as_fd().as_raw_fd());
        let kept_front = settings.kept_front.map(|files| [Some(files.metadata), files.original]);
        let kept_front = kept_front.into_iter().flatten().flatten().map(|file| file.as_raw_fd());
        let kept_fds: Vec<RawFd> = [theirs.as_raw_fd(), noting.as_raw_fd()]
            .into_iter()
            .chain(own.as_ref().map(AsRawFd::as_raw_fd))
            .chain(directory)
            .chain(kept_front)
            .chain(relays.iter().flat_map(Relay::numbers))
            .collect();
        let process = fork_sys::fork(NAME, &kept_fds, move || {
            Service::new(mountpoint, parent(), Some(noting)).run(settings, theirs, relays, served);
        })?;
        let kept_fds = [their_standby.as_raw_fd(), observing.as_raw_fd()].into_iter();
        let kept_fds: Vec<RawFd> = kept_fds.chain(own.as_ref().map(AsRawFd::as_raw_fd)).collect();
        let standby = fork_sys::fork(STANDBY_NAME, &kept_fds, move || {
            let parent = parent();
            if let Some(inheritance) = observing.until_killed(settings) {
                Service::of_killed(inheritance, parent).run(settings, their_standby, Vec::new(), served);
            }
        });
        // The mount also works without it.
        let processes = [Ok(process), standby].into_iter().flatten().collect();
        let sockets = Mutex::new(VecDeque::from([ours, our_standby]));
        Ok(Arc::new(Self { sockets, processes }))
    }

    /// The keeper at the other end of a socket, in a process that this one has not started.
    pub(crate) fn over(socket: OwnedFd) -> Self {
        Self { sockets: Mutex::new(VecDeque::from([socket])), processes: Vec::new() }
    }

    /// Lets another process be the keeper, because the one at the other end of the socket has ended.
    pub fn renew(&self, socket: KeeperSocket) {
        *self.sockets.lock() = VecDeque::from([socket.into_inner()]);
    }

    /// Ends the keeper and waits until it has ended, for a limited time. Without this call, or if it no longer takes requests,
    /// it ends with this process.
    pub fn end(&self) {
        // A thread that waits for an answer may be stuck.
        let sockets = self.sockets.try_lock().map(|mut sockets| std::mem::take(&mut *sockets)).unwrap_or_default();
        let told = |socket: &&OwnedFd| send(socket, &Request::End, &[], SendFlags::empty()).is_ok();
        let told_count = sockets.iter().filter(told).count();
        drop(sockets);
        if told_count == 0 {
            return;
        }
        let until = Instant::now() + END_TIME_MAX;
        for process in &self.processes {
            while matches!(waitpid(Some(*process), WaitOptions::NOHANG), Ok(None)) && Instant::now() < until {
                thread::sleep(END_INTERVAL);
            }
        }
    }

    /// Asks the keeper to mount on the directory of its settings, which is `directory`. The keeper mounts only once. With
    /// `has_rings`, the kernel permits rings until the next request, for 30 s at most. Returns the mount, and whether rings are
    /// permitted.
    ///
    /// # Errors
    /// The mount is refused, or the keeper has ended.
    pub fn mount(&self, directory: &Path, has_rings: bool) -> Result<(Mounted, bool), MountFailure> {
        let refused = |error| MountFailure::Refused { error };
        let (answer, descriptors) = self.ask(Request::Mount { has_rings }).map_err(refused)?;
        match answer {
            Answer::Mounted { mount_id, rings_are_permitted } => {
                let mut descriptors = descriptors.into_iter();
                let Some(device) = descriptors.next() else {
                    let _ = self.unmount(directory, Detach::Lazily);
                    return Err(refused(too_many_files()));
                };
                let auto_unmount = descriptors.next().map(AutoUnmount::new);
                let place = Place::with_id(mount_id, directory);
                Ok((Mounted { device, auto_unmount, place }, rings_are_permitted))
            }
            Answer::MountFailed { failure } => Err(failure),
            answer => Err(refused(answer.into_error())),
        }
    }

    /// Asks the keeper to take over the mount that another process has made on the directory, instead of mounting. Returns the
    /// place of the mount.
    ///
    /// # Errors
    /// The mount is gone, or the keeper has ended.
    pub fn adopt(&self, directory: &Path) -> io::Result<Place> {
        match self.ask(Request::Adopt)?.0 {
            Answer::Mounted { mount_id, .. } => Ok(Place::with_id(mount_id, directory)),
            answer => Err(answer.into_error()),
        }
    }

    /// Asks the keeper to create the hidden FUSE mount. With `has_rings`, the kernel permits rings until the next
    /// request, for 30 s at most. Returns its descriptor of the device, and whether rings are permitted.
    ///
    /// # Errors
    /// The mount is refused, or the keeper has ended.
    pub fn mount_hidden(&self, has_rings: bool) -> Result<(OwnedFd, bool), MountFailure> {
        let (answer, descriptors) = self.ask(Request::MountHidden { has_rings }).map_err(MountFailure::front)?;
        match (answer, descriptors.into_iter().next()) {
            (Answer::Hidden { rings_are_permitted }, Some(device)) => Ok((device, rings_are_permitted)),
            (Answer::Hidden { .. }, None) => Err(MountFailure::front(too_many_files())),
            (Answer::MountFailed { failure }, _) => Err(failure),
            (answer, _) => Err(MountFailure::front(answer.into_error())),
        }
    }

    /// Asks the keeper to mount the kernel's EROFS in front of the hidden mount, which must be served already. If this
    /// fails, no mount stays. Returns the place of the front on `directory`, and the sending end of the transfer into it; the
    /// keeper has the receiving end.
    ///
    /// # Errors
    /// The mount is refused, or the keeper has ended.
    pub fn mount_front(
        &self,
        directory: &Path,
        options: FrontOptions,
    ) -> Result<(Place, Option<FrontTransfer>), MountFailure> {
        may_wait_for_mount();
        let (answer, descriptors) = self.ask(Request::MountFront { options }).map_err(MountFailure::front)?;
        match answer {
            Answer::InFront { place, thread } => {
                let transfer = descriptors.into_iter().next();
                let transfer = transfer.map(|socket| FrontTransfer::new(socket, thread.unwrap_or(0)));
                Ok((Place::from_numbers(place, directory.to_owned()), transfer))
            }
            Answer::MountFailed { failure } => Err(failure),
            answer => Err(MountFailure::front(answer.into_error())),
        }
    }

    /// Asks the keeper, a process that has made the mount before, to permit rings to its connection. They are permitted until the
    /// descriptor is closed, for 30 s at most. Returns `None` if they are not.
    pub fn permit_rings(&self) -> Option<OwnedFd> {
        match self.ask(Request::PermitRings) {
            Ok((Answer::Done, descriptors)) => descriptors.into_iter().next(),
            _ => None,
        }
    }

    /// Tells the keeper that the mount works and that its user knows it. Until then, the keeper unmounts it at the end of this
    /// process, however that ends.
    ///
    /// # Errors
    /// The keeper has ended.
    pub fn confirm_mount(&self) -> io::Result<()> {
        self.ask(Request::ConfirmMount).map(drop)
    }

    /// Asks the keeper to unmount its mount.
    ///
    /// # Errors
    /// It is not mounted or in use, or the keeper has ended.
    pub fn unmount(&self, directory: &Path, detach: Detach) -> Result<(), UnmountError> {
        let answer = self.ask(Request::Unmount { is_lazy: detach == Detach::Lazily });
        match answer.map_err(|error| UnmountError::failed(directory, error))?.0 {
            Answer::Done => Ok(()),
            Answer::UnmountFailed { reason } => Err(reason.at(directory)),
            answer => Err(UnmountReason::Failed { error: answer.into_error() }.at(directory)),
        }
    }

    /// Asks the keeper to set the kernel's readahead of the mount to the value in the options.
    ///
    /// # Errors
    /// Nothing is mounted, the keeper may not set it, or it has ended.
    pub fn set_readahead(&self) -> io::Result<()> {
        match self.ask(Request::SetReadahead)?.0 {
            Answer::Done => Ok(()),
            answer => Err(answer.into_error()),
        }
    }

    /// Whether the thread with this id has administrator rights.
    pub fn is_administrator(&self, thread: u32) -> bool {
        let answer = self.ask(Request::IsAdministrator { thread });
        matches!(answer, Ok((Answer::Administrator { is_administrator: true }, _)))
    }

    /// Starts the thread that looks up the names of a launch. A mount can have one such thread.
    ///
    /// # Errors
    /// Nothing is mounted, the thread was started before, or the keeper has ended.
    pub fn walk(&self) -> io::Result<LaunchWalk> {
        let (answer, descriptors) = self.ask(Request::Walk)?;
        match (answer, descriptors.into_iter().next()) {
            (Answer::Walking { thread }, Some(socket)) => Ok(LaunchWalk::new(socket, thread)),
            (Answer::Walking { .. }, None) => Err(too_many_files()),
            (answer, _) => Err(answer.into_error()),
        }
    }

    /// The processes that use the mount, as text.
    ///
    /// # Errors
    /// The keeper has ended.
    pub fn users(&self) -> io::Result<String> {
        match self.ask(Request::FindUsers)?.0 {
            Answer::Users { text } => Ok(text),
            answer => Err(answer.into_error()),
        }
    }

    /// Asks the keeper, or, if it was killed, its standby.
    fn ask(&self, request: Request) -> io::Result<(Answer, Vec<OwnedFd>)> {
        let mut sockets = self.sockets.lock();
        while let Some(socket) = sockets.front() {
            match ask_over(socket, request)? {
                Some(answer) => return Ok(answer),
                None => drop(sockets.pop_front()),
            }
        }
        Err(io::Error::new(io::ErrorKind::BrokenPipe, "the keeper process has ended"))
    }
}

impl fmt::Debug for Keeper {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Keeper").finish_non_exhaustive()
    }
}

/// Asks the process at the other end of a socket. Returns `None` if it has ended.
fn ask_over(socket: &OwnedFd, request: Request) -> io::Result<Option<(Answer, Vec<OwnedFd>)>> {
    let sent = send(socket, &request, &[], SendFlags::empty()).map_err(io::Error::from);
    match sent.and_then(|()| receive(socket, RecvFlags::empty())) {
        Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => Ok(None),
        received => received,
    }
}

/// The error of a process that has too many open files to receive a descriptor.
fn too_many_files() -> io::Error {
    io::Error::from_raw_os_error(libc::EMFILE)
}
