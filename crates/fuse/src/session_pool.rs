//! The session threads: which of them listen for requests, rest, block on the source, or poll for the next request.

mod busy_polling;
pub(crate) mod gate;
mod interrupt_sys;
mod listeners;

use std::sync::Arc;

use floe_engine::{Reader, Working};

use self::{busy_polling::BusyPolling, gate::Gate, listeners::Listeners};
use crate::{
    MountOptions,
    connection::{pending::Pending, serving_thread},
    requests::deadline::{Deadlines, Visit, has_answered},
};

/// The session threads, organised as leader and followers. One thread listens as long as one is enough. Before a thread
/// blocks on the source, it promotes one of the resting threads.
pub(crate) struct SessionPool {
    reader: Reader,
    deadlines: Arc<Deadlines>,
    pending: Arc<Pending>,
    busy_polling: BusyPolling,
    listeners: Arc<Listeners>,
    gate: Arc<Gate>,
}

impl SessionPool {
    /// Creates the pool of a mount of `reader`. Half of its threads may block on the source at the same time. If it
    /// `is_closed`, its threads take no requests until the gate is opened.
    pub(crate) fn new(reader: Reader, options: &MountOptions, deadlines: Arc<Deadlines>, is_closed: bool) -> Self {
        let pending = Arc::new(Pending::default());
        let reading = reader.clone();
        let busy_polling =
            BusyPolling::new(options.busy_polling, Arc::clone(&pending), move || reading.is_reading_on());
        let thread_count = options.threads.get();
        let listeners = Arc::new(Listeners::new(thread_count, Arc::clone(&pending)));
        let promoting = Arc::clone(&listeners);
        reader.engine().permit_blocking(thread_count / 2, move || promoting.promote());
        let gate = Arc::new(Gate::new(thread_count, is_closed));
        Self { reader, deadlines, pending, busy_polling, listeners, gate }
    }

    /// Shows whether requests wait for a thread.
    pub(crate) fn pending(&self) -> &Arc<Pending> {
        &self.pending
    }

    /// Keeps the threads from taking requests.
    pub(crate) fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    /// Begins a request of the thread `caller` that session thread `thread` has taken. Session threads decode cheap
    /// blocks themselves, so the engine schedules them and counts them as busy until the turn ends.
    pub(crate) fn begin(&self, thread: usize, caller: u32) -> Turn<'_> {
        serving_thread::mark();
        let visit = self.deadlines.enter(thread);
        let working = self.reader.engine().adopt_this_thread();
        self.listeners.begin();
        has_answered();
        Turn { pool: self, visit: Some(visit), working: Some(working), is_alone: self.busy_polling.note(caller) }
    }
}

/// The work of a session thread on one request. When it is dropped, the thread polls for the next request, listens or
/// rests.
pub(crate) struct Turn<'pool> {
    pool: &'pool SessionPool,
    visit: Option<Visit<'pool>>,
    working: Option<Working<'pool>>,
    /// Whether the previous request came from the same caller.
    is_alone: bool,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.visit = None;
        // If another thread will reply, the caller cannot send its next request before that, so polling would be
        // useless.
        let is_another = self.is_alone && has_answered() && self.pool.busy_polling.poll();
        self.working = None;
        self.pool.listeners.end(is_another);
    }
}
