//! The session of a mount: what its session threads serve, and how that ended.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use floe_engine::AdoptedThread;
use floe_fuse_wire::{Received, Ring};
use floe_image::start_error;
use floe_sync::Mutex;

use super::{Ended, end_sender::EndSender, error::MountError, unmounter::Unmounter};
use crate::{
    connection::{Connection, ConnectionEnd},
    edge::FuseEdge,
    session_pool::{Service, SessionPool, SessionThread},
};

/// What the session threads of a mount share. The last of them drops it, which signals the end of the session.
pub(super) struct Session {
    pub(super) edge: FuseEdge,
    connection: Arc<Connection>,
    /// The first error.
    failure: Mutex<Option<io::Error>>,
    /// Whether a thread has seen that the mount was unmounted. If none has and none failed, none has served.
    is_unmounted: AtomicBool,
    unmounter: Unmounter,
    ended: EndSender,
}

impl Session {
    /// Creates a session without threads. Its end is sent to `ended`.
    pub(super) fn new(edge: FuseEdge, connection: Arc<Connection>, unmounter: Unmounter, ended: EndSender) -> Self {
        let (failure, is_unmounted) = (Mutex::new(None), AtomicBool::new(false));
        Self { edge, connection, failure, is_unmounted, unmounter, ended }
    }

    /// Starts a session thread for the ring `number`, bound to `cpu`. Before it serves, it calls `start`, which returns whether
    /// it is to serve.
    pub(super) fn start_ring(
        self: &Arc<Self>,
        pool: &Arc<SessionPool>,
        (mut ring, cpu): (Ring, usize),
        number: usize,
        start: impl FnOnce(&mut Ring) -> bool + Send + 'static,
    ) -> Result<(), MountError> {
        let (session, pool) = (Arc::clone(self), Arc::clone(pool));
        let work = move |adopted| {
            if start(&mut ring) {
                session.serve_ring(&mut ring, &SessionThread::with_ring(pool, number, adopted));
            }
        };
        let started = AdoptedThread::start(self.edge.volume().engine(), format!("floe-fuse/{cpu}"), Some(cpu), work);
        started.map_err(|error| MountError::Threads(start_error(error)))
    }

    /// Serves the requests of a ring. No other thread takes them, so readers would wait forever after an error. An error
    /// therefore ends the service, although other threads still run: the server should exit, which ends the connection.
    fn serve_ring(&self, ring: &mut Ring, thread: &SessionThread) {
        let served = catch_unwind(AssertUnwindSafe(|| self.edge.serve_ring(ring, thread)));
        let served = served.unwrap_or_else(|_| Err(io::Error::other("a session thread panicked")));
        if let Err(error) = &served {
            let failure = io::Error::new(error.kind(), format!("a ring failed: {error}"));
            self.ended.send(Ended::Failed(failure));
        }
        self.end(served);
    }
}

impl Service for Session {
    fn serve(&self, thread: &SessionThread, received: Received<'_>) {
        self.edge.serve(thread, received);
    }

    fn end(&self, result: io::Result<()>) {
        if result.is_ok() {
            self.is_unmounted.store(true, Relaxed);
        }
        if result.is_ok() || self.connection.has_ended() {
            self.edge.end();
        }
        if let Err(error) = result {
            self.failure.lock().get_or_insert(error);
        }
    }

    fn note_stuck(&self) {
        // An aborted connection leaves a dead mount, which must still be unmounted.
        if self.connection.end() != Some(ConnectionEnd::Aborted) {
            self.unmounter.note_end();
        }
        self.ended.send(Ended::Stuck);
    }

    fn note_overdue(&self, count: usize) {
        self.edge.note_overdue(count);
    }

    fn look_at_cpus(&self) {
        self.edge.volume().look_at_cpus();
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let failure = self.failure.get_mut().take();
        let end = match failure {
            Some(error) => Ended::Failed(error),
            None if *self.is_unmounted.get_mut() => {
                self.unmounter.note_end();
                Ended::Unmounted
            }
            // The set-up failed: the mount still exists, and is to be unmounted.
            None => Ended::Failed(io::Error::other("no session thread has served it")),
        };
        self.ended.send(end);
    }
}
