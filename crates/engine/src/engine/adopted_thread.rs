//! A thread that the engine did not start.

use std::{marker::PhantomData, sync::Arc};

use crate::{
    Engine, Working,
    threads::{real_time, worker_record::WorkerRecord},
};

/// A thread that takes requests and serves them, and that the engine did not start. It is scheduled like the decompression
/// threads while more threads are runnable than there are CPUs, and time-shared otherwise.
///
/// The thread keeps this value, and drops it when it ends.
pub struct AdoptedThread {
    engine: Arc<Engine>,
    record: Arc<WorkerRecord>,
    /// It cannot be sent to another thread.
    _is_bound: PhantomData<*const ()>,
}

impl AdoptedThread {
    /// Adopts the calling thread.
    pub fn new(engine: &Arc<Engine>) -> Self {
        let name = rustix::thread::name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        Self { engine: Arc::clone(engine), record: engine.workers.adopt(name), _is_bound: PhantomData }
    }

    /// Begins the work on a request. The thread counts as busy until the result is dropped.
    pub fn work(&self) -> Working<'_> {
        real_time::begin_request(&self.record);
        self.engine.workers.work()
    }
}

impl Drop for AdoptedThread {
    /// The kernel may reuse the thread's id.
    fn drop(&mut self) {
        self.record.detach();
    }
}
