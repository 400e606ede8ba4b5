//! The process that serves a mount, for a client that waits for its end, and the sockets of all mounts of a machine.

use std::{
    collections::BTreeMap,
    io,
    os::{fd::OwnedFd, unix::net::UnixStream},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use floe_keeper::MountTable;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::retry_on_intr,
    net::sockopt::socket_peercred,
    process::{Pid, PidfdFlags, geteuid, pidfd_open},
};

use super::{
    Answer, AnswerLimits, Question,
    client::{connect, converse},
    socket_path,
};

/// How long the kernel may keep the connection of an unmounted mount before the mount counts as used elsewhere. A front's keeper
/// drops its clone of the mount first.
const CONNECTION_TIME_MAX: Duration = Duration::from_secs(2);

/// The interval at which the process is asked for the state of its connection.
const ASK_INTERVAL: Duration = Duration::from_millis(250);

/// How long a stopped process delays a question. A process on a busy machine must be able to answer meanwhile.
const ANSWER_LIMITS: AnswerLimits = AnswerLimits { time: Duration::from_secs(1), bytes: 64 << 10 };

/// The process that serves a mount.
#[derive(Debug)]
pub struct ServingProcess {
    endpoint: Endpoint,
    /// Its number.
    pub id: Pid,
    descriptor: OwnedFd,
}

/// What became of the process that has served a mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProcessEnd {
    /// It has ended, and has released all that it held.
    Ended,
    /// It goes on, because the files of the mount are still in use: in another mount namespace, or by another mount.
    Serves,
    /// It has not ended in time.
    Stuck,
}

impl ServingProcess {
    /// The process that serves the mount on a directory, found without accessing the mount. `None` if nobody serves it, if the
    /// files are mounted on another directory too, so that the mount outlives this directory, or if the kernel has no
    /// descriptors of processes (Linux 5.3).
    pub fn of(directory: &Path) -> Option<Self> {
        let table = MountTable::read().ok()?;
        let entry = table.find(directory).ok()?.filter(|entry| entry.is_served())?;
        if table.entries().iter().filter(|other| other.device == entry.device).count() > 1 {
            return None;
        }
        let user_id = entry.user_id.unwrap_or_else(|| geteuid().as_raw());
        Endpoint::of_mount(user_id, entry.device).find_map(Self::behind)
    }

    /// The process that listens at an endpoint.
    fn behind(endpoint: Endpoint) -> Option<Self> {
        // A process that is stopped does not accept the connection, but the kernel does.
        let connection = endpoint.connect(ANSWER_LIMITS.time).ok()?;
        let id = socket_peercred(&connection).ok()?.pid;
        let descriptor = pidfd_open(id, PidfdFlags::empty()).ok()?;
        // While the connection exists, so does the process, and no other one can have got its number.
        let mut state = [PollFd::new(&connection, PollFlags::empty())];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        retry_on_intr(|| poll(&mut state, Some(&at_once))).ok()?;
        let is_closed = state[0].revents().contains(PollFlags::HUP);
        (!is_closed).then_some(Self { endpoint, id, descriptor })
    }

    /// Waits until the process has ended after its mount was unmounted, for at most `time_max`.
    pub fn wait_for_end(&self, time_max: Duration) -> ProcessEnd {
        let unmounted = Instant::now();
        while unmounted.elapsed() < time_max {
            if self.ends_within(ASK_INTERVAL) {
                return ProcessEnd::Ended;
            }
            if unmounted.elapsed() >= CONNECTION_TIME_MAX && self.is_connected() {
                return ProcessEnd::Serves;
            }
        }
        if self.ends_within(Duration::ZERO) { ProcessEnd::Ended } else { ProcessEnd::Stuck }
    }

    fn ends_within(&self, time: Duration) -> bool {
        let mut ended = [PollFd::new(&self.descriptor, PollFlags::IN)];
        let time = Timespec::try_from(time).ok();
        retry_on_intr(|| poll(&mut ended, time.as_ref())).is_ok_and(|count| count > 0)
    }

    /// Whether the process answers that the kernel's connection for the mount is alive.
    fn is_connected(&self) -> bool {
        let Ok(connection) = self.endpoint.connect(ANSWER_LIMITS.time) else { return false };
        // Another mount may have got the device number, and with it the name of the socket.
        let is_same = socket_peercred(&connection).is_ok_and(|peer| peer.pid == self.id);
        let answer = is_same.then(|| converse(&connection, &Question::Connection, ANSWER_LIMITS));
        matches!(answer, Some(Ok(Answer::Connection { is_alive: true })))
    }
}

/// The socket of a mount.
#[derive(Debug)]
pub struct Endpoint {
    path: PathBuf,
    /// The user who mounted.
    pub user_id: u32,
    /// The device number of the mount.
    pub device: (u32, u32),
}

impl Endpoint {
    /// The directories for sockets by user: those of this user, or also those of all others that do not depend on their
    /// environment. The directories of users with mounts in the table are always among them. Does not access the directories of
    /// others, which may hang.
    pub fn directories(of_every_user: bool, table: &MountTable) -> BTreeMap<u32, Vec<PathBuf>> {
        let served = table.entries().iter().filter(|entry| entry.is_served());
        let mounting = served.map(|entry| entry.user_id.unwrap_or(0));
        let mut users = if of_every_user { socket_path::of_all_users(mounting) } else { BTreeMap::new() };
        let own = geteuid().as_raw();
        users.insert(own, socket_path::of_this_user(own));
        users
    }

    /// The sockets of a user's mounts. Some may be leftovers of killed programs, and another user may have created any
    /// file there. Only an answer to [`Endpoint::ask`] proves that a mount listens.
    pub fn of_user(user_id: u32, directories: &[PathBuf]) -> impl Iterator<Item = Self> {
        socket_path::sockets_in(directories, user_id).map(move |(device, path)| Self { path, user_id, device })
    }

    /// The possible sockets of a user's mount with this device number, best first.
    pub(super) fn of_mount(user_id: u32, device: (u32, u32)) -> impl Iterator<Item = Self> {
        socket_path::candidates(user_id, device).map(move |path| Self { path, user_id, device })
    }

    /// Connects to the process that listens.
    ///
    /// # Errors
    /// No program of the user listens, or it takes longer than `patience` to accept.
    pub(super) fn connect(&self, patience: Duration) -> io::Result<UnixStream> {
        connect(&self.path, self.user_id, patience)
    }

    /// Asks the mount.
    ///
    /// # Errors
    /// No program of the user listens, or it exceeds the limits, refuses, or is another version of Floe.
    pub fn ask(&self, question: &Question, limits: AnswerLimits) -> io::Result<Answer> {
        let connection = self.connect(limits.time)?;
        match converse(&connection, question, limits)? {
            Answer::Refused(reason) => Err(io::Error::other(reason)),
            answer => Ok(answer),
        }
    }
}
