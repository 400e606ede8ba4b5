//! The mounts of a domain move to other processes: to the next broker, and to the domain that takes their place.

use std::{
    io,
    os::{fd::OwnedFd, unix::net::UnixStream},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use super::{Domain, Entry, State};
use crate::service::messages::Report;

/// How long a new broker waits for moves that the last one has begun. They usually take milliseconds.
const MOVE_TIME_MAX: Duration = Duration::from_millis(500);

/// How long the other process may take to ask for the stop: it has asked before the connection comes here.
const STOP_TIME_MAX: Duration = Duration::from_millis(1500);

/// The interval at which they are looked at.
const GLANCE: Duration = Duration::from_millis(2);

impl Domain {
    /// Tells a new broker about all mounts.
    pub(super) fn introduce_itself(&self, broker: OwnedFd) {
        self.wait_for_moves();
        // A mount that ends or changes meanwhile is reported after this, to the new broker.
        let mounts = self.mounts.lock();
        // The process that takes a mount over tells of it; if the other one still serves it, that one counts.
        let own = mounts.iter().filter(|(_, entry)| !entry.is_moving);
        let kept = own.map(|(number, entry)| {
            let is_served = !matches!(entry.state, State::Attaching { .. });
            let report = Report::Kept { number: *number, format: entry.format.clone(), is_served };
            (report, entry.files.descriptors())
        });
        // A broker that has ended is replaced by another one.
        let _ = self.broker.answer(broker, &kept.collect::<Vec<_>>());
    }

    /// Waits until moves are complete or have failed: without their broker, no other one begins.
    fn wait_for_moves(&self) {
        let is_under_way = |entry: &Entry| {
            let is_given = entry.is_moving && matches!(entry.state, State::Mounted(_));
            is_given || matches!(entry.state, State::Attaching { is_taken: true, .. })
        };
        let started = Instant::now();
        while self.mounts.lock().values().any(is_under_way) && started.elapsed() < MOVE_TIME_MAX {
            thread::sleep(GLANCE);
        }
    }

    /// Hands a mount over to the process at the other end of a connection, on a thread of its own: requests in progress may take time.
    pub(super) fn hand_over_later(self: &Arc<Self>, number: u64, descriptors: Vec<OwnedFd>) {
        let Some(connection) = descriptors.into_iter().next().map(UnixStream::from) else { return };
        if let Some(entry) = self.mounts.lock().get_mut(&number) {
            entry.is_moving = true;
        }
        let domain = Arc::clone(self);
        let work = move || {
            let is_given = domain.hand_over(number, &connection).unwrap_or(false);
            domain.note_move(number, is_given);
        };
        if thread::Builder::new().name("floe-handover".to_owned()).spawn(work).is_err() {
            self.note_move(number, false);
        }
    }

    fn note_move(&self, number: u64, is_given: bool) {
        if let Some(entry) = self.mounts.lock().get_mut(&number) {
            // Otherwise it is about to be forgotten.
            entry.is_moving = is_given;
        }
        self.broker.tell(&Report::HandedOver { number, is_given });
    }

    fn hand_over(&self, number: u64, connection: &UnixStream) -> io::Result<bool> {
        let source = match self.mounts.lock().get(&number).map(|entry| &entry.state) {
            Some(State::Mounted(mounted)) => Arc::clone(&mounted.source),
            _ => return Ok(false),
        };
        connection.set_read_timeout(Some(STOP_TIME_MAX))?;
        connection.set_write_timeout(Some(STOP_TIME_MAX))?;
        let giver = source.giver.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        giver.give_prepared(connection)
    }
}
