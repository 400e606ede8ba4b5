//! The threads that take requests: which of them listen, which rest, when one may wait for the source, and when one polls
//! for the next request.

mod busy_polling;
mod listeners;

use std::sync::Arc;

use floe_engine::{Reader, Working};

use self::{busy_polling::BusyPolling, listeners::Listeners};
use crate::{
    MountOptions,
    connection::{pending::Pending, serving_thread},
    requests::deadline::{Deadlines, Visit, has_answered},
};

/// The threads that take requests (leader and followers: one listens as long as one is enough, and before it waits for the
/// source it promotes one of those that rest).
pub(crate) struct SessionPool {
    reader: Reader,
    deadlines: Arc<Deadlines>,
    pending: Arc<Pending>,
    busy_polling: BusyPolling,
    listeners: Arc<Listeners>,
}

impl SessionPool {
    /// The threads of a mount of `reader`. Half of them may wait for the source at one time.
    pub(crate) fn new(reader: Reader, options: &MountOptions, deadlines: Arc<Deadlines>) -> Self {
        let pending = Arc::new(Pending::default());
        let reading = reader.clone();
        let busy_polling =
            BusyPolling::new(options.busy_polling, Arc::clone(&pending), move || reading.is_reading_on());
        let thread_count = options.threads.get();
        let listeners = Arc::new(Listeners::new(thread_count, Arc::clone(&pending)));
        let promoting = Arc::clone(&listeners);
        reader.engine().permit_blocking(thread_count / 2, move || promoting.promote());
        Self { reader, deadlines, pending, busy_polling, listeners }
    }

    /// What shows whether requests wait for a thread.
    pub(crate) fn pending(&self) -> &Arc<Pending> {
        &self.pending
    }

    /// Begins a request of `caller`, which `thread` has taken. The threads that take requests decompress what is cheap, so
    /// the engine schedules them, and counts them as working until the turn ends.
    pub(crate) fn begin(&self, thread: usize, caller: u32) -> Turn<'_> {
        serving_thread::mark();
        let visit = self.deadlines.enter(thread);
        let working = self.reader.engine().adopt_this_thread();
        self.listeners.begin();
        has_answered();
        Turn { pool: self, visit: Some(visit), working: Some(working), is_alone: self.busy_polling.note(caller) }
    }
}

/// A session thread's work on one request. When it is dropped, the thread polls for the next one, listens or rests,
/// whatever promises the most.
pub(crate) struct Turn<'pool> {
    pool: &'pool SessionPool,
    visit: Option<Visit<'pool>>,
    working: Option<Working<'pool>>,
    /// The request before was of the same thread.
    is_alone: bool,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.visit = None;
        // Where another thread will answer, the program does not ask again before that.
        let is_another = self.is_alone && has_answered() && self.pool.busy_polling.poll();
        self.working = None;
        self.pool.listeners.end(is_another);
    }
}
