//! The session of a mount: its threads, and the watchdog over them.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc::{Receiver, RecvTimeoutError, Sender},
    },
    thread,
    time::Duration,
};

use floe_engine::{AdoptedThread, Volume};
use floe_image::start_error;
use floe_sync::Mutex;

use super::{Ended, end_sender::EndSender, error::MountError, unmounter::Unmounter};
use crate::{
    RequestCounts, connection::Rescue, edge::FuseEdge, requests::deadline::Deadlines, session_pool::gate::Gate,
};

/// The interval at which the watchdog refuses requests while all session threads are stuck.
const RESCUE_INTERVAL: Duration = Duration::from_millis(50);

/// The longest interval at which the watchdog checks that the mount still exists and whether CPUs are short. Short deadlines
/// shorten it.
const LOOK_INTERVAL_MAX: Duration = Duration::from_secs(1);

/// How long session threads may take to end after the mount ended.
const END_PATIENCE: Duration = Duration::from_secs(2);

/// The shared state of the session threads. The last thread drops it, which signals the end of the session.
pub(super) struct Session {
    pub(super) edge: FuseEdge,
    /// The error of the first thread that failed.
    failure: Mutex<Option<io::Error>>,
    /// Whether a thread has seen that the mount was unmounted. If none has and none failed, none has served.
    is_unmounted: AtomicBool,
    unmounter: Unmounter,
    ended: EndSender,
    /// Dropping it notifies the watchdog.
    _watched: Sender<()>,
}

impl Session {
    /// Creates a session without threads. Its end is sent to `ended`; dropping `watched` notifies the watchdog.
    pub(super) fn new(edge: FuseEdge, unmounter: Unmounter, ended: EndSender, watched: Sender<()>) -> Self {
        Self {
            edge,
            failure: Mutex::new(None),
            is_unmounted: AtomicBool::new(false),
            unmounter,
            ended,
            _watched: watched,
        }
    }

    /// Starts a session thread, bound to `cpu` if there is one.
    pub(super) fn start_thread(
        self: &Arc<Self>,
        name: String,
        cpu: Option<usize>,
        work: impl FnOnce(&Self, AdoptedThread) + Send + 'static,
    ) -> Result<(), MountError> {
        let session = Arc::clone(self);
        let started =
            AdoptedThread::start(self.edge.volume().engine(), name, cpu, move |adopted| work(&session, adopted));
        started.map_err(|error| MountError::Threads(start_error(error)))
    }

    /// Serves requests, and notes an error.
    pub(super) fn note(&self, serve: impl FnOnce(&FuseEdge) -> io::Result<()>) {
        if let Err(error) = self.attempt(serve) {
            self.set_failure(error);
        }
    }

    /// Serves the requests of a ring. No other thread takes them, so readers would wait forever after an error. An error
    /// therefore ends the service, although other threads still run: the server should exit, which ends the connection.
    pub(super) fn note_ring(&self, serve: impl FnOnce(&FuseEdge) -> io::Result<()>) {
        if let Err(error) = self.attempt(serve) {
            let failure = io::Error::new(error.kind(), format!("a ring failed: {error}"));
            self.ended.send(Ended::Failed(failure));
            self.set_failure(error);
        }
    }

    /// Serves requests. A panic is an error. The first thread to notice the end of the connection tells the others.
    fn attempt(&self, serve: impl FnOnce(&FuseEdge) -> io::Result<()>) -> io::Result<()> {
        let served = catch_unwind(AssertUnwindSafe(|| serve(&self.edge)));
        let served = served.unwrap_or_else(|_| Err(io::Error::other("a session thread panicked")));
        let (_, _, connection) = self.edge.parts();
        if served.is_ok() {
            self.is_unmounted.store(true, Relaxed);
        }
        if served.is_ok() || connection.connection_end().is_some() {
            self.edge.end();
        }
        served
    }

    /// Keeps the first error.
    fn set_failure(&self, error: io::Error) {
        self.failure.lock().get_or_insert(error);
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

/// How a watched session ended.
#[derive(PartialEq, Eq)]
pub(super) enum SessionEnd {
    /// All session threads ended.
    Ended,
    /// The kernel ended the connection, but session threads did not end.
    Stuck,
}

/// Enforces deadlines, and looks whether CPUs are short, until the session ends, or is found stuck after the connection ended.
pub(super) fn watch(
    volume: &Volume,
    deadlines: &Deadlines,
    counts: &RequestCounts,
    rescue: Option<Rescue>,
    gate: &Gate,
    session_end: &Receiver<()>,
) -> SessionEnd {
    let tick = deadlines.tick_interval();
    let mut since_tick = Duration::ZERO;
    let mut since_disconnected = Duration::ZERO;
    loop {
        let is_stuck = deadlines.all_threads_are_stuck();
        let calm = tick.unwrap_or(LOOK_INTERVAL_MAX).min(LOOK_INTERVAL_MAX);
        let interval = if is_stuck { calm.min(RESCUE_INTERVAL) } else { calm };
        if session_end.recv_timeout(interval) != Err(RecvTimeoutError::Timeout) {
            // If the session threads failed, readers and unmounts would wait without end.
            while let Some(rescue) = rescue.as_ref().filter(|rescue| !gate.is_closed() && !rescue.is_disconnected()) {
                rescue.refuse_pending();
                thread::sleep(RESCUE_INTERVAL);
            }
            return SessionEnd::Ended;
        }
        volume.look_at_cpus();
        since_tick += interval;
        if tick.is_some_and(|tick| since_tick >= tick) {
            since_tick = Duration::ZERO;
            counts.note_overdue(deadlines.tick());
        }
        let Some(rescue) = &rescue else { continue };
        if rescue.is_disconnected() {
            since_disconnected += interval;
            if since_disconnected >= END_PATIENCE {
                return SessionEnd::Stuck;
            }
        } else if deadlines.all_threads_are_stuck() && !gate.is_closed() {
            rescue.refuse_pending();
        }
    }
}

/// Starts a thread.
pub(super) fn spawn(name: String, work: impl FnOnce() + Send + 'static) -> Result<(), MountError> {
    thread::Builder::new().name(name).spawn(work).map(drop).map_err(|error| MountError::Threads(start_error(error)))
}
