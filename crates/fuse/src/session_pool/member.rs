//! The connections of a pool.

use std::{io, sync::Arc};

use floe_fuse_wire::{Channel, Receipt, Received, RequestBuffer};

use super::{gate::Gate, turn::SessionThread};
use crate::{connection::Connection, requests::deadline::Deadlines};

/// What answers the requests of a connection. It is dropped when the connection has left the pool and no thread works for it any
/// more.
pub(crate) trait Service: Send + Sync {
    /// Answers a request, which the calling session thread has taken.
    fn serve(&self, thread: &SessionThread, received: Received<'_>);

    /// Notes that the connection has ended, or failed with an error. No further request is taken.
    fn end(&self, result: io::Result<()>);

    /// Notes that the connection has ended long ago, but threads still work for it.
    fn note_stuck(&self);

    /// Notes that the deadline of some requests has passed.
    fn note_overdue(&self, count: usize);

    /// Looks whether CPUs are short, so that all threads are scheduled accordingly.
    fn look_at_cpus(&self);
}

/// A connection to the kernel whose requests the pool takes.
pub(crate) struct Member {
    pub(crate) connection: Arc<Connection>,
    /// Its descriptors, which must not block. Each thread uses one of them.
    pub(crate) channels: Vec<Channel>,
    pub(crate) deadlines: Arc<Deadlines>,
    pub(crate) service: Arc<dyn Service>,
    pub(super) gate: Gate,
    /// Its number in the pool.
    pub(super) number: u64,
}

impl Member {
    /// A connection that is to join a pool.
    pub(crate) fn new(
        connection: Arc<Connection>,
        channels: Vec<Channel>,
        deadlines: Arc<Deadlines>,
        service: Arc<dyn Service>,
    ) -> Self {
        Self { connection, channels, deadlines, service, gate: Gate::default(), number: 0 }
    }

    /// Takes a request, if there is one and the gate is open.
    pub(super) fn receive<'buffer>(
        &self,
        thread: usize,
        buffer: &'buffer mut RequestBuffer,
    ) -> io::Result<Receipt<'buffer>> {
        let channel = self.channels.get(thread % self.channels.len().max(1));
        let received = channel.and_then(|channel| self.gate.pass(|| channel.receive(buffer)));
        received.unwrap_or(Ok(Receipt::Nothing))
    }
}
