//! Hands the connection of a mount over to another process, which continues to serve it.
//!
//! Node numbers, file handles and positions in directories are functions of the image, so the other process needs the
//! descriptors of the device and the terms of the connection, and nothing about open files.

use std::{
    fmt, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::PathBuf,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use floe_fuse_wire::{Agreement, Channel, InitFlags, Notifier};
use floe_keeper::{AutoUnmount, MountTable, Place};
use floe_sync::{Mutex, MutexGuard};

use super::{Ended, end_sender::EndSender, unmounter::Unmounter};
use crate::session_pool::SessionPool;

/// How long session threads may take to stop taking requests.
const GATE_PATIENCE: Duration = Duration::from_secs(5);

/// The interval at which [`Handover::pause`] checks whether requests are still in progress.
const DRAIN_INTERVAL: Duration = Duration::from_millis(1);

/// The terms of a connection, which INIT negotiated with the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectionTerms {
    /// The minor version of the protocol.
    pub minor: u32,
    /// The features in use: `FUSE_*` flags of INIT.
    pub features: u64,
}

/// A mounted connection to the kernel that another process has served.
#[derive(Debug)]
pub struct Inherited {
    /// The open descriptors of `/dev/fuse`, all of one connection; at least one.
    pub devices: Vec<OwnedFd>,
    /// The socket by which fusermount3 notices that no process serves the mount any more.
    pub auto_unmount: Option<OwnedFd>,
    /// The directory that it is mounted on: absolute and without links.
    pub directory: PathBuf,
    /// The place of the mount, if another process keeps it; `None` if the keeper is to find and adopt it.
    pub place: Option<Place>,
    /// The terms of the connection.
    pub terms: ConnectionTerms,
}

/// Hands a mount over to another process. Can be used from any thread.
#[derive(Clone)]
pub struct Handover {
    pool: Arc<SessionPool>,
    /// The number of the connection in the pool.
    number: u64,
    channels: Vec<Channel>,
    agreement: Agreement,
    auto_unmount: Option<Arc<AutoUnmount>>,
    unmounter: Unmounter,
    ended: EndSender,
    /// Locked by the one pause at a time.
    pausing: Arc<Mutex<()>>,
}

/// A mount whose requests no session thread takes; those that were in progress have replies. Dropping it lets the threads
/// continue.
#[derive(Debug)]
pub struct Paused<'handover> {
    handover: &'handover Handover,
    _only: MutexGuard<'handover, ()>,
}

/// Why a mount cannot be handed over now. Its text is one line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PauseError {
    /// It is being handed over to another process.
    Busy,
    /// This many requests are still in progress, and the kernel cannot resend them.
    Unanswered(usize),
    /// Session threads did not stop taking requests.
    Stuck,
}

/// The connection of a mount that was taken over and is not served yet.
#[derive(Debug)]
pub(super) struct PausedConnection {
    pub(super) channel: Channel,
    /// Descriptors that no session thread uses. Closing them earlier would fail the requests that were received on them.
    pub(super) _spare: Vec<Channel>,
}

impl ConnectionTerms {
    /// Whether the kernel can resend requests that were received but not answered: since Linux 6.9. Without this, requests
    /// in progress are lost with the process.
    pub fn can_resend(self) -> bool {
        InitFlags::from_bits_retain(self.features).contains(InitFlags::HAS_RESEND)
    }

    pub(crate) fn of(agreement: &Agreement) -> Self {
        Self { minor: agreement.minor, features: agreement.flags.bits() }
    }

    pub(super) fn agreement(self) -> Agreement {
        Agreement { minor: self.minor, flags: InitFlags::from_bits_retain(self.features) }
    }
}

impl Inherited {
    /// Whether the mount still exists, with this device number of its files.
    pub fn is_mounted(&self, device: (u32, u32)) -> bool {
        let table = MountTable::read().unwrap_or_default();
        let is_listed = table.on(&self.directory).is_some_and(|entry| entry.is_fuse() && entry.device == device);
        let channels = self.devices.iter().filter_map(|device| device.try_clone().ok()).map(Channel::new);
        is_listed && channels.take(1).any(|channel| channel.events().is_ok_and(|events| !has_ended(events)))
    }
}

fn has_ended(events: rustix::event::PollFlags) -> bool {
    events.contains(rustix::event::PollFlags::ERR)
}

impl Handover {
    pub(super) fn new(
        (pool, number): (Arc<SessionPool>, u64),
        channels: Vec<Channel>,
        agreement: Agreement,
        auto_unmount: Option<Arc<AutoUnmount>>,
        unmounter: Unmounter,
        ended: EndSender,
    ) -> Self {
        Self { pool, number, channels, agreement, auto_unmount, unmounter, ended, pausing: Arc::default() }
    }

    /// The terms of the connection.
    pub fn terms(&self) -> ConnectionTerms {
        ConnectionTerms::of(&self.agreement)
    }

    /// The descriptors of the connection.
    pub fn devices(&self) -> Vec<BorrowedFd<'_>> {
        self.channels.iter().map(AsFd::as_fd).collect()
    }

    /// The socket by which fusermount3 notices that no process serves the mount any more.
    pub fn auto_unmount(&self) -> Option<BorrowedFd<'_>> {
        self.auto_unmount.as_deref().map(AsFd::as_fd)
    }

    /// Lets the session threads forget the connection, which another process serves.
    pub(super) fn dismiss(&self) {
        self.pool.dismiss(self.number);
    }

    /// Stops taking requests, and waits for at most `patience` until those in progress have their replies. If the kernel can
    /// resend requests, those without a reply are left to the process that takes over.
    ///
    /// # Errors
    /// The mount is being handed over already, or requests stay in progress. The mount is served as before.
    pub fn pause(&self, patience: Duration) -> Result<Paused<'_>, PauseError> {
        let Some(only) = self.pausing.try_lock() else { return Err(PauseError::Busy) };
        // Dropped on errors, which resumes the connection.
        let paused = Paused { handover: self, _only: only };
        if !self.pool.pause(self.number, GATE_PATIENCE) {
            return Err(PauseError::Stuck);
        }
        let started = Instant::now();
        loop {
            match self.channels.iter().map(Channel::unanswered).sum() {
                0 => return Ok(paused),
                _ if started.elapsed() < patience => thread::sleep(DRAIN_INTERVAL),
                _ if self.terms().can_resend() => return Ok(paused),
                count => return Err(PauseError::Unanswered(count)),
            }
        }
    }
}

impl fmt::Debug for Handover {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Handover").field("terms", &self.terms()).finish_non_exhaustive()
    }
}

impl Paused<'_> {
    /// Ends the service of the mount by this process: [`Mount::wait`](crate::Mount::wait) returns [`Ended::HandedOver`]. The
    /// mount stays.
    pub fn finish(self) {
        let handover = self.handover;
        // From now on the mount belongs to another process.
        handover.unmounter.note_end();
        handover.ended.send(Ended::HandedOver);
        handover.dismiss();
    }
}

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        self.handover.pool.resume(self.handover.number);
    }
}

impl PausedConnection {
    /// Lets the session threads serve it. The kernel resends the requests without a reply, if it can.
    ///
    /// # Errors
    /// The connection has ended.
    pub(super) fn serve(self, handover: &Handover) -> io::Result<()> {
        if handover.terms().can_resend() {
            Notifier::new(self.channel).resend()?;
        }
        handover.pool.resume(handover.number);
        Ok(())
    }
}

impl fmt::Display for PauseError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy => formatter.write_str("it is being handed over to another process"),
            Self::Unanswered(count) => write!(
                formatter,
                "{count} requests are in progress, and this kernel cannot resend them (Linux 6.9 can): try again"
            ),
            Self::Stuck => formatter.write_str("its threads do not stop taking requests"),
        }
    }
}

impl std::error::Error for PauseError {}
