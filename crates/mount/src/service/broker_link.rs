//! The connection of a domain to its broker, and its wait for the next broker.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use floe_ipc::{receive, send};
use floe_sync::Mutex;
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, eventfd, poll},
    io::{ioctl_fionbio, read, retry_on_intr, write},
    net::{
        RecvFlags, SendFlags, SocketFlags, accept_with, listen,
        sockopt::{Timeout, set_socket_timeout, socket_peercred},
    },
    process::{Uid, geteuid},
};

use super::messages::{Order, Report, version};

/// The number of brokers that may wait to be accepted. There is one at a time.
const BACKLOG: i32 = 4;

/// How long a broker may take for its greeting, and to receive the answer to it.
const GREETING_TIME_MAX: Duration = Duration::from_secs(5);

/// The connection of a domain to its broker. If the broker dies, another one takes its place.
#[derive(Debug)]
pub(super) struct BrokerLink {
    socket: Mutex<Arc<OwnedFd>>,
    /// Where the next broker connects.
    listener: Option<OwnedFd>,
    /// The user whose broker it is.
    user: Uid,
    /// Readable when a mount was removed.
    removed: OwnedFd,
    /// The [`version`] of the messages of this process.
    version: u32,
}

impl BrokerLink {
    /// The broker at the other end of a socket, of the user of this process at this time. The next one connects to `listener`, a bound
    /// socket. A confined process can no longer listen.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub(super) fn new(socket: OwnedFd, listener: Option<OwnedFd>) -> io::Result<Self> {
        if let Some(listener) = &listener {
            listen(listener, BACKLOG)?;
            ioctl_fionbio(listener, true)?;
        }
        let removed = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { socket: Mutex::new(Arc::new(socket)), listener, user: geteuid(), removed, version: version() })
    }

    /// The next message with its descriptors; `None` if the broker has ended.
    pub(super) fn order(&self) -> Option<(Order, Vec<OwnedFd>)> {
        receive(&*self.socket(), RecvFlags::empty()).ok()?
    }

    /// Tells the broker something, if there is one.
    pub(super) fn tell(&self, report: &Report) {
        let _ = send(&*self.socket(), report, &[], SendFlags::empty());
    }

    /// Tells the broker something that it may miss: a broker that does not read must not stop a mount.
    pub(super) fn tell_if_it_reads(&self, report: &Report) {
        let _ = send(&*self.socket(), report, &[], SendFlags::DONTWAIT);
    }

    /// Notes that a mount was removed.
    pub(super) fn note_removal(&self) {
        // If the counter is full, the thread that waits has not read it, and will.
        let _ = write(&self.removed, &1_u64.to_ne_bytes());
    }

    /// Waits for the next broker as long as there are mounts. Returns a connection to it.
    pub(super) fn next_broker(&self, has_mounts: impl Fn() -> bool) -> Option<OwnedFd> {
        while has_mounts() {
            let watched = [Some(&self.removed), self.listener.as_ref()];
            let mut watched: Vec<PollFd<'_>> =
                watched.into_iter().flatten().map(|watched| PollFd::new(watched, PollFlags::IN)).collect();
            let _ = retry_on_intr(|| poll(&mut watched, None));
            let _ = read(&self.removed, &mut [0; 8]);
            if let Some(listener) = &self.listener
                && let Ok(socket) = accept_with(listener, SocketFlags::CLOEXEC)
                && is_broker(&socket, self.user).unwrap_or(false)
            {
                return Some(socket);
            }
        }
        None
    }

    /// Answers a new broker, which gets the reports from now on: first these, with descriptors.
    ///
    /// # Errors
    /// It has ended, or does not read.
    pub(super) fn answer(&self, socket: OwnedFd, kept: &[(Report, Vec<BorrowedFd<'_>>)]) -> io::Result<()> {
        let socket = Arc::new(socket);
        let count = u32::try_from(kept.len()).unwrap_or(u32::MAX);
        let mut current = self.socket.lock();
        send(&*socket, &Report::Adopting { version: self.version, count }, &[], SendFlags::empty())?;
        for (report, descriptors) in kept {
            send(&*socket, report, descriptors, SendFlags::empty())?;
        }
        for timeout in [Timeout::Send, Timeout::Recv] {
            set_socket_timeout(&socket, timeout, None)?;
        }
        *current = socket;
        Ok(())
    }

    fn socket(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.socket.lock())
    }
}

/// Whether the process at the other end of a connection is a broker of a user. One of another version sends no other orders: it
/// continues the mounts in another process.
fn is_broker(socket: &OwnedFd, user: Uid) -> io::Result<bool> {
    for timeout in [Timeout::Send, Timeout::Recv] {
        set_socket_timeout(socket, timeout, Some(GREETING_TIME_MAX))?;
    }
    if socket_peercred(socket)?.uid != user {
        return Ok(false);
    }
    Ok(matches!(receive(socket.as_fd(), RecvFlags::empty())?, Some((Order::Adopt { .. }, _))))
}
