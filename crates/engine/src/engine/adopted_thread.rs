//! Threads that serve requests.

use std::{io, marker::PhantomData, sync::Arc};

use crate::{
    Engine, Working,
    threads::{real_time, worker_record::WorkerRecord},
};

/// A thread that takes requests and serves them. It is scheduled like the decompression threads while more threads are runnable
/// than there are CPUs, and time-shared otherwise.
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
        let record = engine.workers.adopt(name, None);
        record.attach();
        Self::of(Arc::clone(engine), record)
    }

    /// Starts such a thread, bound to `cpu` if there is one. It is scheduled from its first turn on.
    ///
    /// # Errors
    /// The operating system refuses to start a thread.
    pub fn start(
        engine: &Arc<Engine>,
        name: String,
        cpu: Option<usize>,
        work: impl FnOnce(Self) + Send + 'static,
    ) -> io::Result<()> {
        let record = engine.workers.adopt(name, cpu);
        let (engine, adopted) = (Arc::clone(engine), Arc::clone(&record));
        record.start(move || work(Self::of(engine, adopted)))
    }

    fn of(engine: Arc<Engine>, record: Arc<WorkerRecord>) -> Self {
        Self { engine, record, _is_bound: PhantomData }
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
