//! The keeper: an unconfined process that mounts and unmounts for the one that serves the mount.

mod held;
mod incoming;
mod kept;
pub(super) mod messages;
mod standby;

use std::{
    collections::VecDeque,
    ffi::CStr,
    fmt, fs,
    io::{self, IoSlice},
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
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
use self::standby::Note;
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

/// The names of the processes.
const NAME: &CStr = c"floe-keeper";
const STANDBY_NAME: &CStr = c"floe-standby";

/// How long fusermount3 has to unmount after the end of the process that serves the mount.
const FUSERMOUNT_TIME_MAX: Duration = Duration::from_millis(500);

/// How long a process may need to set up a connection with rings, for which the kernel's parameter is changed.
const RING_PERMISSION_TIME_MAX: Timespec = Timespec { tv_sec: 30, tv_nsec: 0 };

/// How long a keeper may take to end: the kernel may wait for the last requests of its mounts.
const END_TIME_MAX: Duration = Duration::from_secs(2);

/// How long a keeper tries to unmount a mount that its user does not know of.
const UNPROVEN_TIME_MAX: Duration = Duration::from_secs(10);

/// The interval of these attempts while the process that served the mount has not ended.
const UNPROVEN_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// The pause between two looks at a keeper that is to end.
const END_INTERVAL: Duration = Duration::from_millis(1);

/// A process that mounts and unmounts for the process that reads the image, which is usually confined. The keeper is not
/// confined, and sees no byte of the image. It mounts or adopts one directory, once, unmounts only that mount, and ends with the process
/// that it serves. A second process stands by, and takes its place if it is killed.
pub struct Keeper {
    /// The sockets of the keeper and of the one that stands by, in this order. Locked for one question and its answer; empty once
    /// the keepers have ended.
    sockets: Mutex<VecDeque<OwnedFd>>,
    processes: Vec<Pid>,
}

impl Keeper {
    /// Starts a keeper, which also serves the relays. This process must have no other thread.
    ///
    /// # Errors
    /// Other threads run, or the process or its socket cannot be created.
    pub fn start(kept: Kept<'_>, relays: Vec<Relay>) -> io::Result<Arc<Self>> {
        let pair = || socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let ((ours, theirs), (our_standby, their_standby)) = (pair()?, pair()?);
        let (observing, noting) = standby::notes()?;
        // The kernel may drop the inode of `/proc/PID` from its cache. The sandbox's rule for it would not apply to the new
        // inode, so the keeper holds the directory open.
        let own = open("/proc/self", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok();
        let mountpoint = kept.mountpoint.map(Directory::try_clone).transpose()?;
        let mark = LifeMark::of_this_thread().ok();
        let parent = || Parent::new(mark?).ok();
        let served = getpid();
        let directory = mountpoint.as_ref().map(|directory| directory.as_fd().as_raw_fd());
        let numbers = [theirs.as_raw_fd(), noting.as_raw_fd()].into_iter();
        let numbers = numbers.chain(own.as_ref().map(AsRawFd::as_raw_fd)).chain(directory);
        let numbers: Vec<RawFd> = numbers.chain(relays.iter().flat_map(Relay::numbers)).collect();
        let process = fork_sys::fork(NAME, &numbers, move || {
            let parent = parent().map(Arc::new);
            keep(Incoming { socket: theirs, relays, served }, kept, Held::new(mountpoint, parent, Some(noting)));
        })?;
        let numbers = [their_standby.as_raw_fd(), observing.as_raw_fd()];
        let standing_by = fork_sys::fork(STANDBY_NAME, &numbers, move || {
            let parent = parent().map(Arc::new);
            if let Some(held) = observing.until_killed(kept, parent) {
                keep(Incoming { socket: their_standby, relays: Vec::new(), served }, kept, held);
            }
        });
        // The mount also works without it.
        let processes = [Ok(process), standing_by].into_iter().flatten().collect();
        let sockets = Mutex::new(VecDeque::from([ours, our_standby]));
        Ok(Arc::new(Self { sockets, processes }))
    }

    /// Ends the keeper and waits until it has ended, for a limited time. Without this call, or if it no longer takes questions,
    /// it ends with this process.
    pub fn end(&self) {
        // A thread that waits for an answer may be stuck.
        let sockets = self.sockets.try_lock().map(|mut sockets| std::mem::take(&mut *sockets)).unwrap_or_default();
        let told = sockets.iter().filter(|socket| send(socket, Question::End).is_ok()).count();
        drop(sockets);
        if told == 0 {
            return;
        }
        let until = Instant::now() + END_TIME_MAX;
        for process in &self.processes {
            while matches!(waitpid(Some(*process), WaitOptions::NOHANG), Ok(None)) && Instant::now() < until {
                thread::sleep(END_INTERVAL);
            }
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

    /// Tells the keeper that the mount works and that its user knows it. Until then, the keeper unmounts it at the end of this
    /// process, however that ends.
    ///
    /// # Errors
    /// The keeper has ended.
    pub fn note_works(&self) -> io::Result<()> {
        self.ask(Question::Works).map(drop)
    }

    /// Asks the keeper to unmount its mount.
    pub(crate) fn unmount(&self, directory: &Path, detach: Detach) -> Result<(), UnmountError> {
        let question = if detach == Detach::Lazily { Question::UnmountLazily } else { Question::Unmount };
        let failed = |error| UnmountError::Failed { path: directory.to_owned(), error };
        let (answer, _) = self.ask(question).map_err(failed)?;
        answer.into_unmount(directory)
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

    /// Asks the keeper, or, if it was killed, the one that stands by.
    fn ask(&self, question: Question) -> io::Result<(Answer, Vec<OwnedFd>)> {
        let mut sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(socket) = sockets.front() {
            match ask_over(socket, question)? {
                Some(answer) => return Ok(answer),
                None => drop(sockets.pop_front()),
            }
        }
        Err(io::Error::new(io::ErrorKind::BrokenPipe, "the keeper process has ended"))
    }
}

/// Asks the process at the other end of a socket. Returns `None` if it has ended.
fn ask_over(socket: &OwnedFd, question: Question) -> io::Result<Option<(Answer, Vec<OwnedFd>)>> {
    let mut bytes = vec![0; ANSWER_BYTES_MAX];
    let received = send(socket, question).map_err(io::Error::from).and_then(|_| receive(socket.as_fd(), &mut bytes));
    let (len, descriptors) = match received {
        Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
            return Ok(None);
        }
        received => received?,
    };
    bytes.truncate(len);
    Ok(Answer::from_bytes(&bytes).map(|answer| (answer, descriptors)))
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
    if held.is_unproven
        && let Some(mounted) = &held.mounted
    {
        unmount_unproven(mounted, held.parent.as_deref());
    }
    // Otherwise the process has been killed: its threads may be stuck.
    if let (false, Some(parent)) = (is_told_to_end, held.parent.as_ref().filter(|_| held.is_watched)) {
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
    held.note(Note::Ends);
}

/// Unmounts a mount that its user does not know of. fusermount3 may not be started while the process that served it takes up all
/// processes and threads that its user may have.
fn unmount_unproven(mounted: &Unmounter, parent: Option<&Parent>) {
    let until = Instant::now() + UNPROVEN_TIME_MAX;
    while mounted.is_mounted() && mounted.unmount(Detach::Lazily).is_err() && Instant::now() < until {
        match parent {
            Some(parent) => drop(parent.ends_within(UNPROVEN_INTERVAL)),
            None => thread::sleep(END_INTERVAL),
        }
        thread::sleep(END_INTERVAL);
    }
}

/// Whether a mount that nobody serves any more is still there after the time that fusermount3 needs.
fn stays_dead(mounted: &Unmounter) -> bool {
    thread::sleep(FUSERMOUNT_TIME_MAX);
    // The kernel may still have the attributes in its cache.
    let is_dead = |directory: PathBuf| rustix::fs::statfs(directory).is_err_and(|error| error == Errno::NOTCONN);
    mounted.is_mounted() && mounted.path_now().is_some_and(is_dead)
}
