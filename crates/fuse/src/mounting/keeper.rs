//! The keeper: an unconfined process that mounts and unmounts for the one that serves the mount.

mod held;
mod incoming;
mod kept;
mod messages;

use std::{
    fmt, fs,
    io::{self, IoSlice},
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use floe_engine::Priority;
use rustix::event::Timespec;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sendmsg, socketpair,
};
use rustix::process::{Pid, WaitOptions, getpid, waitpid};

pub use self::kept::{Kept, UsersOf};

use self::held::Held;
use self::incoming::{Ended, Incoming};
use self::messages::{ANSWER_BYTES_MAX, Answer, DONE, Question, RINGS_ARE_PERMITTED, priority_to_number, receive};
use crate::{
    Detach, Directory, FrontRefusal, MountError, UnmountError, Unmounter,
    connection::serving_thread::may_wait_for_mount,
    mounting::fork_sys,
    mounting::front_transfer::FrontTransfer,
    mounting::fusermount::AutoUnmount,
    mounting::launch_walk::LaunchWalk,
    mounting::mountpoint::Connected,
    mounting::parent_sys::{LifeMark, Parent},
    mounting::place::Place,
    mounting::relay::Relay,
};

/// How long fusermount3 has to unmount after the end of the process that serves the mount.
const FUSERMOUNT_TIME_MAX: Duration = Duration::from_millis(500);

/// How long a process may need to set up a connection with rings, for which the kernel's parameter is changed.
const RING_PERMISSION_TIME_MAX: Timespec = Timespec { tv_sec: 30, tv_nsec: 0 };

/// A process that mounts and unmounts for the process that reads the image, which is usually confined. The keeper is not
/// confined, and sees no byte of the image. It mounts or adopts one directory, once, unmounts only that mount, and ends with the process
/// that it serves.
pub struct Keeper {
    /// Locked for one question and its answer; `None` once the keeper has ended.
    socket: Mutex<Option<OwnedFd>>,
    process: Pid,
}

impl Keeper {
    /// Starts a keeper, which also serves the relays. This process must have no other thread.
    ///
    /// # Errors
    /// Other threads run, or the process or its socket cannot be created.
    pub fn start(kept: Kept<'_>, relays: Vec<Relay>) -> io::Result<Arc<Self>> {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        // The kernel may drop the inode of `/proc/PID` from its cache. The sandbox's rule for it would not apply to the new
        // inode, so the keeper holds the directory open.
        let own = open("/proc/self", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok();
        let mountpoint = kept.mountpoint.map(Directory::try_clone).transpose()?;
        let directory = mountpoint.as_ref().map(|directory| directory.as_fd().as_raw_fd());
        let numbers = [&theirs].into_iter().chain(&own).map(AsRawFd::as_raw_fd).chain(directory);
        let numbers: Vec<RawFd> = numbers.chain(relays.iter().flat_map(Relay::numbers)).collect();
        let mark = LifeMark::of_this_thread().ok();
        let parent = || Parent::new(mark?).ok();
        let served = getpid();
        let process = fork_sys::fork(&numbers, move || {
            let parent = parent().map(Arc::new);
            keep(Incoming { socket: theirs, relays, served }, kept, Held::new(mountpoint, parent));
        })?;
        Ok(Arc::new(Self { socket: Mutex::new(Some(ours)), process }))
    }

    /// Ends the keeper and waits until it has ended. Without this call, or if it no longer takes questions, it ends with
    /// this process.
    pub fn end(&self) {
        // A thread that waits for an answer may be stuck.
        let socket = self.socket.try_lock().ok().and_then(|mut socket| socket.take());
        if let Some(socket) = socket
            && send(&socket, Question::End).is_ok()
        {
            drop(socket);
            let _ = rustix::io::retry_on_intr(|| waitpid(Some(self.process), WaitOptions::empty()));
        }
    }

    /// Asks the keeper to mount. The keeper mounts only once. Returns the place of the mount too.
    pub(crate) fn connect(&self, directory: &Path) -> Result<(Connected, Place), MountError> {
        let refused = |error| MountError::Refused { path: directory.to_owned(), error };
        let (answer, descriptors) = self.ask(Question::Mount).map_err(refused)?;
        let error = answer.error();
        match answer.kind {
            DONE => {
                let mut descriptors = descriptors.into_iter();
                let Some(device) = descriptors.next() else {
                    // This process has too many open files to receive the descriptor.
                    let _ = self.unmount(directory, Detach::Lazily);
                    return Err(refused(io::Error::from_raw_os_error(libc::EMFILE)));
                };
                let connected = Connected { device, auto_unmount: descriptors.next().map(AutoUnmount::new) };
                Ok((connected, Place::with_id(answer.text.parse().ok(), directory)))
            }
            1 => Err(MountError::Device(error)),
            2 => Err(MountError::NoFusermount),
            3 => Err(MountError::Fusermount(answer.text)),
            _ => Err(refused(error)),
        }
    }

    /// Asks the keeper to take over the mount that another process has made on the directory, instead of mounting. Returns the
    /// place of the mount.
    pub(crate) fn adopt(&self, directory: &Path) -> Result<Place, MountError> {
        let refused = |error| MountError::Refused { path: directory.to_owned(), error };
        let (answer, _) = self.ask(Question::Adopt).map_err(refused)?;
        match answer.kind {
            DONE => Ok(Place::with_id(answer.text.parse().ok(), directory)),
            _ => Err(refused(answer.error())),
        }
    }

    /// Asks the keeper to create the hidden FUSE mount. If it `has_rings`, the keeper makes the kernel permit them until
    /// [`Keeper::put_front`]. Returns its descriptor of the device, and whether rings are permitted.
    pub(crate) fn hide(&self, has_rings: bool) -> Result<(OwnedFd, bool), MountError> {
        let refused = |error: io::Error| MountError::Front(FrontRefusal::new(&error));
        let (answer, descriptors) = self.ask(Question::MountHidden(has_rings.into())).map_err(refused)?;
        match (answer.kind, descriptors.into_iter().next()) {
            (DONE, Some(device)) => Ok((device, answer.text == RINGS_ARE_PERMITTED)),
            (DONE, None) => Err(refused(io::Error::from_raw_os_error(libc::EMFILE))),
            (1, _) => Err(MountError::Device(answer.error())),
            _ => Err(MountError::Front(FrontRefusal { reason: answer.text })),
        }
    }

    /// Asks the keeper to mount the kernel's EROFS in front of the hidden mount, which must be served already. If this
    /// fails, no mount stays. Returns the place of the front on `directory`, and the sending end of the transfer into it; the keeper
    /// has the receiving end, whose thread gets `priority` or the best that is permitted.
    pub(crate) fn put_front(
        &self,
        directory: &Path,
        priority: Priority,
    ) -> Result<(Place, Option<FrontTransfer>), MountError> {
        may_wait_for_mount();
        let answer = self.ask(Question::MountFront(priority_to_number(priority)));
        let (answer, descriptors) = answer.map_err(|error| MountError::Front(FrontRefusal::new(&error)))?;
        match answer.kind {
            DONE => {
                let (thread, id) = answer.text.split_once(' ').unwrap_or_default();
                let transfer = descriptors.into_iter().next();
                let transfer = transfer.map(|socket| FrontTransfer::new(socket, thread.parse().unwrap_or(0)));
                Ok((Place::with_id(id.parse().ok(), directory), transfer))
            }
            _ => Err(MountError::Front(FrontRefusal { reason: answer.text })),
        }
    }

    /// Asks the keeper to unmount its mount.
    pub(crate) fn unmount(&self, directory: &Path, detach: Detach) -> Result<(), UnmountError> {
        let question = if detach == Detach::Lazily { Question::UnmountLazily } else { Question::Unmount };
        let path = directory.to_owned();
        let (answer, _) = match self.ask(question) {
            Ok(answer) => answer,
            Err(error) => return Err(UnmountError::Failed { path, error }),
        };
        match answer.kind {
            DONE => Ok(()),
            1 => Err(UnmountError::NotMounted(path)),
            2 => Err(UnmountError::Busy(path)),
            3 => Err(UnmountError::NoPermission { path, reason: answer.text }),
            5 => Err(UnmountError::Covered(path)),
            _ => Err(UnmountError::Failed { path, error: answer.error() }),
        }
    }

    /// Asks the keeper to set the kernel's readahead of the mount to the value in the options.
    pub(crate) fn set_read_ahead(&self) -> io::Result<()> {
        let (answer, _) = self.ask(Question::ReadAhead)?;
        if answer.kind == DONE { Ok(()) } else { Err(answer.error()) }
    }

    /// Whether the thread with this id has administrator rights.
    pub(crate) fn is_administrator(&self, thread: u32) -> bool {
        self.ask(Question::IsAdministrator(thread)).is_ok_and(|(answer, _)| answer.kind == DONE)
    }

    /// Starts the thread that looks up the names of a launch, with `priority` or the best that is permitted. A mount can have
    /// one such thread.
    ///
    /// # Errors
    /// Nothing is mounted, the thread was started before, or the keeper has ended.
    pub fn walk(&self, priority: Priority) -> io::Result<LaunchWalk> {
        let (answer, descriptors) = self.ask(Question::Walk(priority_to_number(priority)))?;
        let thread = answer.text.parse().unwrap_or(0);
        match (answer.kind, descriptors.into_iter().next()) {
            (DONE, Some(socket)) => Ok(LaunchWalk::new(socket, thread)),
            (DONE, None) => Err(io::Error::from_raw_os_error(libc::EMFILE)),
            _ => Err(answer.error()),
        }
    }

    /// The processes that use the mount, as text.
    ///
    /// # Errors
    /// The keeper has ended.
    pub fn users(&self) -> io::Result<String> {
        self.ask(Question::Users).map(|(answer, _)| answer.text)
    }

    fn ask(&self, question: Question) -> io::Result<(Answer, Vec<OwnedFd>)> {
        let ended = || io::Error::new(io::ErrorKind::BrokenPipe, "the keeper process has ended");
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        let socket = socket.as_ref().ok_or_else(ended)?;
        send(socket, question)?;
        let mut bytes = vec![0; ANSWER_BYTES_MAX];
        let (len, descriptors) = receive(socket.as_fd(), &mut bytes)?;
        bytes.truncate(len);
        let answer = Answer::from_bytes(&bytes).ok_or_else(ended)?;
        Ok((answer, descriptors))
    }
}

impl fmt::Debug for Keeper {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Keeper").finish_non_exhaustive()
    }
}

fn send(socket: &OwnedFd, question: Question) -> rustix::io::Result<usize> {
    let question = question.to_bytes();
    rustix::io::retry_on_intr(|| {
        sendmsg(socket, &[IoSlice::new(&question)], &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL)
    })
}

/// Answers questions until it is told to end, or the other end of the socket is closed.
fn keep(mut incoming: Incoming, kept: Kept<'_>, mut held: Held) {
    let is_told_to_end = loop {
        let time_max = held.ring_permission.as_ref().map(|_| RING_PERMISSION_TIME_MAX);
        let question = match incoming.question(time_max) {
            Ok(Some(question)) => question,
            Ok(None) => {
                held.ring_permission = None;
                continue;
            }
            Err(Ended) => break incoming.close(),
        };
        if question == Question::End {
            break true;
        }
        let (answer, descriptors) = held.answer(question, kept);
        let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&descriptors));
        }
        let bytes = answer.to_bytes();
        let sent = rustix::io::retry_on_intr(|| {
            sendmsg(&incoming.socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)
        });
        if sent.is_err() {
            break incoming.close();
        }
    };
    // Otherwise the process has been killed: its threads may be stuck.
    if let (false, Some(parent)) = (is_told_to_end, held.parent.filter(|_| held.is_watched)) {
        parent.wait_for_end();
    }
    if let (true, Some(mounted)) = (kept.options.auto_unmount, &held.mounted) {
        // fusermount3 unmounts a FUSE mount, but not if it misses the mount because the mount table changes at that moment.
        if held.is_front || !is_told_to_end && stays_dead(mounted) {
            let _ = mounted.unmount(Detach::Lazily);
        }
    }
    if let Some(passing) = kept.passing {
        let _ = fs::remove_dir(passing);
    }
}

/// Whether a mount that nobody serves any more is still there after the time that fusermount3 needs.
fn stays_dead(mounted: &Unmounter) -> bool {
    thread::sleep(FUSERMOUNT_TIME_MAX);
    // The kernel may still have the attributes in its cache.
    let is_dead = |directory: PathBuf| rustix::fs::statfs(directory).is_err_and(|error| error == Errno::NOTCONN);
    mounted.is_mounted() && mounted.path_now().is_some_and(is_dead)
}
