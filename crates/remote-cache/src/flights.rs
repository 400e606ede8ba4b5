//! Single flight for chunks: one thread of the process fetches a chunk, and others wait for it.

use std::{collections::HashMap, io, ops::Range, sync::Arc};

use bytes::Bytes;
use floe_sync::{Condvar, Mutex, MutexGuard};

use crate::{Cause, FetchError, layout::ChunkIndex};

/// The chunks in flight.
#[derive(Debug, Default)]
pub(crate) struct Flights {
    table: Mutex<HashMap<ChunkIndex, Arc<Flight>>>,
}

/// The flight of one chunk.
#[derive(Debug)]
pub(crate) struct Flight {
    cause: Cause,
    outcome: Mutex<Option<Outcome>>,
    has_ended: Condvar,
}

/// The result of a flight.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    /// The verified bytes of the chunk.
    Bytes(Bytes),
    /// An error.
    Failed(Arc<io::Error>),
    /// Neither bytes nor an error: threads that need the chunk must look it up again.
    Abandoned,
}

/// The role of a thread that needs a chunk.
#[derive(Debug)]
pub(crate) enum Role {
    /// It fetches these consecutive chunks.
    Leader(Vec<Lead>),
    /// It waits for another thread.
    Follower(Arc<Flight>),
}

/// A chunk that this thread must fetch. Dropping it abandons the flight.
#[derive(Debug)]
pub(crate) struct Lead {
    flights: Arc<Flights>,
    index: ChunkIndex,
    flight: Arc<Flight>,
}

impl Flights {
    /// Joins the flight of a chunk, or starts and leads it. A leader also leads the other chunks of `reach`, which contains
    /// `index`, up to the nearest ones on both sides that are in flight.
    pub(crate) fn enter(self: &Arc<Self>, index: ChunkIndex, reach: Range<ChunkIndex>, cause: Cause) -> Role {
        let mut table = self.lock();
        if let Some(flight) = table.get(&index) {
            return Role::Follower(Arc::clone(flight));
        }
        let is_free = |index: &ChunkIndex| !table.contains_key(index);
        let before = (reach.start..index).rev().take_while(is_free).count() as u64;
        let after = (index + 1..reach.end).take_while(is_free).count() as u64;
        let lead = |index| {
            let flight = Arc::new(Flight { cause, outcome: Mutex::new(None), has_ended: Condvar::new() });
            table.insert(index, Arc::clone(&flight));
            Lead { flights: Arc::clone(self), index, flight }
        };
        Role::Leader((index - before..=index + after).map(lead).collect())
    }

    /// Whether a chunk is in flight.
    pub(crate) fn has(&self, index: ChunkIndex) -> bool {
        self.lock().contains_key(&index)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ChunkIndex, Arc<Flight>>> {
        self.table.lock()
    }
}

impl Flight {
    /// The cause of the first request for the chunk.
    pub(crate) const fn cause(&self) -> Cause {
        self.cause
    }

    /// Waits for the end of the flight.
    pub(crate) fn wait(&self) -> Outcome {
        let outcome = self.outcome.lock();
        let outcome = self.has_ended.wait_while(outcome, |outcome| outcome.is_none());
        outcome.clone().unwrap_or(Outcome::Abandoned)
    }

    fn end(&self, outcome: Outcome) {
        let mut place = self.outcome.lock();
        if place.is_none() {
            *place = Some(outcome);
            self.has_ended.notify_all();
        }
    }
}

impl Lead {
    pub(crate) const fn index(&self) -> ChunkIndex {
        self.index
    }

    pub(crate) const fn flight(&self) -> &Arc<Flight> {
        &self.flight
    }

    /// Ends the flight. The chunk's lock must be released before, because the next leader in this process would take it
    /// for its own.
    pub(crate) fn end(self, outcome: Outcome) {
        self.flight.end(outcome);
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        self.flights.lock().remove(&self.index);
        self.flight.end(Outcome::Abandoned);
    }
}

/// A copy of a flight's error for one of the waiting threads.
pub(crate) fn copy_of(error: &Arc<io::Error>) -> io::Error {
    match (FetchError::inside(error), error.raw_os_error()) {
        (Some(error), _) => error.clone().into(),
        (None, Some(code)) => io::Error::from_raw_os_error(code),
        (None, None) => io::Error::new(error.kind(), error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leads(role: Role) -> Vec<Lead> {
        match role {
            Role::Leader(leads) => leads,
            Role::Follower(_) => Vec::new(),
        }
    }

    #[test]
    fn a_chunk_has_one_leader_and_ends_for_all() {
        let flights = Arc::new(Flights::default());
        let mut first = leads(flights.enter(4, 4..7, Cause::Prefetch));
        assert_eq!(first.iter().map(Lead::index).collect::<Vec<_>>(), [4, 5, 6]);
        assert_eq!(leads(flights.enter(2, 1..9, Cause::Demand)).iter().map(Lead::index).collect::<Vec<_>>(), [1, 2, 3]);
        let Role::Follower(joined) = flights.enter(5, 5..6, Cause::Demand) else { panic!("on its way") };
        assert_eq!(joined.cause(), Cause::Prefetch);
        let waiter = std::thread::spawn(move || joined.wait());
        first.remove(1).end(Outcome::Bytes(Bytes::from_static(b"five")));
        assert!(matches!(waiter.join().expect("no panic"), Outcome::Bytes(bytes) if bytes == "five"));
        let Role::Follower(joined) = flights.enter(6, 6..7, Cause::Demand) else { panic!("on its way") };
        drop(first);
        assert!(matches!(joined.wait(), Outcome::Abandoned));
        assert_eq!(leads(flights.enter(6, 4..13, Cause::Demand)).len(), 9, "all are free again");
    }

    #[test]
    fn errors_keep_their_kind() {
        let outage = Arc::new(FetchError::new(crate::FetchFault::Gone, "gone").into());
        assert_eq!(FetchError::fault_of(&copy_of(&outage)), crate::FetchFault::Gone);
        assert_eq!(copy_of(&Arc::new(io::Error::from_raw_os_error(5))).raw_os_error(), Some(5));
        assert_eq!(copy_of(&Arc::new(io::ErrorKind::TimedOut.into())).kind(), io::ErrorKind::TimedOut);
    }
}
