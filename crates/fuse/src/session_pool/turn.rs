//! Session threads and their turns.

use std::{cell::Cell, sync::Arc};

use floe_engine::{AdoptedThread, Reader, Working};
use floe_fuse_wire::Reply;
use floe_keeper::mark_serving_thread;

use super::{NextRequest, SessionPool};
use crate::requests::deadline::{BusyThread, Deadlines, PendingReply};

/// A session thread, which serves one request after the other.
pub(crate) struct SessionThread {
    pool: Arc<SessionPool>,
    /// Threads with rings have numbers beyond those of the pool, and do not take part in its choice of listeners.
    number: usize,
    adopted: AdoptedThread,
    next: Cell<Next>,
}

/// What a session thread does after a request.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) enum Next {
    /// Looks for another request of the same connection.
    #[default]
    Look,
    /// Rests if another thread listens, else it looks for another request of the same connection.
    RestOrLook,
    /// Rests if another thread listens, else it listens: there is no other request.
    RestOrListen,
}

impl SessionThread {
    /// Makes the calling thread, which is `adopted`, session thread `number` of a pool.
    pub(super) fn new(pool: Arc<SessionPool>, number: usize, adopted: AdoptedThread) -> Self {
        mark_serving_thread();
        Self { pool, number, adopted, next: Cell::default() }
    }

    /// Makes the calling thread, which is `adopted`, a session thread that takes the requests of ring `ring`.
    pub(crate) fn with_ring(pool: Arc<SessionPool>, ring: usize, adopted: AdoptedThread) -> Self {
        let number = pool.thread_count_max() + ring;
        Self::new(pool, number, adopted)
    }

    /// Begins a request of `caller` for a mount with this reader and these deadlines. This session thread is busy until the
    /// turn ends. `next` is the likely next request of the caller.
    pub(crate) fn begin<'turn>(
        &'turn self,
        reader: &'turn Reader,
        deadlines: &'turn Arc<Deadlines>,
        caller: u32,
        next: NextRequest,
    ) -> Turn<'turn> {
        let pool = &self.pool;
        let busy = deadlines.enter(self.number);
        let working = self.adopted.work();
        let listener = (self.number < pool.thread_count_max()).then(|| {
            pool.listeners.begin();
            Listener { is_alone: pool.lone_caller.note(caller, next == NextRequest::AfterReply), next }
        });
        Turn { thread: self, reader, busy, working: Some(working), listener }
    }

    /// What to do after the request that was served last.
    pub(super) fn take_next(&self) -> Next {
        self.next.take()
    }
}

/// The work of a session thread on one request. When it is dropped, a thread without a ring may poll for the next request.
pub(crate) struct Turn<'turn> {
    thread: &'turn SessionThread,
    reader: &'turn Reader,
    busy: BusyThread<'turn>,
    working: Option<Working<'turn>>,
    /// `None` for a thread with a ring.
    listener: Option<Listener>,
}

/// A session thread that takes requests of all connections.
struct Listener {
    /// Whether the caller is the only one: the previous request was its own, too.
    is_alone: bool,
    next: NextRequest,
}

impl Turn<'_> {
    /// Applies the deadline to the request until its reply is taken.
    pub(crate) fn watch(&self, reply: Reply) -> PendingReply {
        let pending = self.busy.watch(reply);
        self.thread.pool.alarm.ring();
        pending
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let has_answered = self.busy.end();
        let Some(Listener { is_alone, next }) = self.listener else { return };
        let pool = &self.thread.pool;
        // If another thread will reply, the caller cannot send its next request before that, so polling would be
        // useless. Prefetch needs the CPU more.
        let may_poll = is_alone && has_answered && !self.reader.is_prefetching();
        let found = if may_poll { pool.busy_polling.poll(next) } else { None };
        self.working = None;
        pool.listeners.end();
        self.thread.next.set(match found {
            Some(true) => Next::Look,
            Some(false) => Next::RestOrListen,
            None => Next::RestOrLook,
        });
    }
}
