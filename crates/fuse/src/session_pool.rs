//! The session threads: which of them listen for requests, rest, block on the source, or poll for the next request.

mod busy_polling;
pub(crate) mod gate;
mod interrupt_sys;
mod listeners;
mod lone_caller;

use std::sync::Arc;

use floe_engine::{AdoptedThread, Reader, Volume, Working};
use floe_fuse_wire::Reply;
use floe_keeper::mark_serving_thread;

pub(crate) use self::busy_polling::NextRequest;
use self::{busy_polling::BusyPolling, gate::Gate, listeners::Listeners, lone_caller::LoneCaller};
use crate::{
    MountOptions,
    connection::Pending,
    requests::deadline::{BusyThread, Deadlines, PendingReply},
};

/// The session threads, organised as leader and followers. One thread listens as long as one is enough. Before a thread
/// blocks on the source, it promotes one of the resting threads.
pub(crate) struct SessionPool {
    reader: Reader,
    deadlines: Arc<Deadlines>,
    pending: Arc<Pending>,
    busy_polling: BusyPolling,
    lone_caller: Arc<LoneCaller>,
    listeners: Arc<Listeners>,
    gate: Arc<Gate>,
    /// The number of threads that take requests from `/dev/fuse`. The numbers of those with rings follow.
    device_threads: usize,
    closes_image: bool,
}

impl SessionPool {
    /// Creates the pool of a mount of `reader`. If `gate_is_closed`, its threads take no requests until the gate is opened.
    pub(crate) fn new(reader: Reader, options: &MountOptions, deadlines: Arc<Deadlines>, gate_is_closed: bool) -> Self {
        let pending = Arc::new(Pending::default());
        let reading = reader.clone();
        let busy_polling =
            BusyPolling::new(options.busy_polling, Arc::clone(&pending), move || reading.is_prefetching());
        let thread_count = options.threads.get();
        let listeners = Arc::new(Listeners::new(thread_count, Arc::clone(&pending)));
        let gate = Arc::new(Gate::new(thread_count, gate_is_closed));
        let (device_threads, closes_image) = (thread_count, options.closes_image);
        let lone_caller = Arc::default();
        Self { reader, deadlines, pending, busy_polling, lone_caller, listeners, gate, device_threads, closes_image }
    }

    /// Permits half of the threads to block on the source at the same time. Threads with rings must not block: no other
    /// thread would take the requests of their CPU.
    pub(crate) fn permit_blocking(&self) {
        let (promoting, lone_caller) = (Arc::clone(&self.listeners), Arc::clone(&self.lone_caller));
        self.reader.volume().permit_blocking(self.device_threads / 2, move || promoting.promote(&lone_caller));
    }

    /// Lets no thread rest any more, because the connection has ended, and closes the image if the options say so.
    pub(crate) fn end(&self) {
        self.listeners.end_all();
        if self.closes_image {
            self.reader.volume().close();
        }
    }

    /// The number of the first thread with a ring.
    pub(crate) fn first_with_ring(&self) -> usize {
        self.device_threads
    }

    /// The view of requests that wait for a thread.
    pub(crate) fn pending(&self) -> &Arc<Pending> {
        &self.pending
    }

    /// The gate, which keeps the threads from taking requests while it is closed.
    pub(crate) fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    /// The volume. Its engine schedules the session threads, because they decode cheap blocks themselves.
    pub(crate) fn volume(&self) -> &Arc<Volume> {
        self.reader.volume()
    }

    /// Makes the calling thread, which is `adopted`, session thread `number`.
    pub(crate) fn enter(&self, number: usize, adopted: AdoptedThread) -> SessionThread<'_> {
        mark_serving_thread();
        SessionThread { pool: self, number, adopted }
    }
}

/// A session thread, which serves one request after the other.
pub(crate) struct SessionThread<'pool> {
    pool: &'pool SessionPool,
    number: usize,
    adopted: AdoptedThread,
}

impl SessionThread<'_> {
    /// Begins a request of `caller`. This session thread is busy until the turn ends. `next` is the likely next
    /// request of the caller.
    pub(crate) fn begin(&self, caller: u32, next: NextRequest) -> Turn<'_> {
        let pool = self.pool;
        let busy = pool.deadlines.enter(self.number);
        let working = self.adopted.work();
        let listener = (self.number < pool.device_threads).then(|| {
            pool.listeners.begin();
            Listener { is_alone: pool.lone_caller.note(caller, next == NextRequest::AfterReply), next }
        });
        Turn { pool, busy, working: Some(working), listener }
    }
}

/// The work of a session thread on one request. When it is dropped, a thread without a ring polls for the next request,
/// listens or rests.
pub(crate) struct Turn<'thread> {
    pool: &'thread SessionPool,
    busy: BusyThread<'thread>,
    working: Option<Working<'thread>>,
    /// `None` for a thread with a ring.
    listener: Option<Listener>,
}

/// A session thread that shares `/dev/fuse` with others.
struct Listener {
    /// Whether the caller is the only one: the previous request was its own, too.
    is_alone: bool,
    next: NextRequest,
}

impl Turn<'_> {
    /// Applies the deadline to the request until its reply is taken.
    pub(crate) fn watch(&self, reply: Reply) -> PendingReply {
        self.busy.watch(reply)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let has_answered = self.busy.end();
        let Some(Listener { is_alone, next }) = self.listener else { return };
        // If another thread will reply, the caller cannot send its next request before that, so polling would be
        // useless.
        let is_another = is_alone && has_answered && self.pool.busy_polling.poll(next);
        self.working = None;
        self.pool.listeners.end(is_another);
    }
}
