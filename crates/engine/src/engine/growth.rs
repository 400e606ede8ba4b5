//! The growth of the block cache while memory is ample.

use std::{
    sync::{
        Arc, Weak,
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

use floe_sync::{Mutex, MutexGuard};

use crate::Engine;

/// The interval of the checks while the cache is larger than its budget.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// How long a grown cache may be unused before it shrinks back.
const UNUSED_MAX: Duration = Duration::from_secs(300);

/// Watches a cache that has grown, and shrinks it when memory becomes scarce or the cache is no longer used.
///
/// The thread exists only while the cache is larger than its budget. It ends with the engine.
#[derive(Debug, Default)]
pub(crate) struct GrowthWatch {
    /// Dropping it ends the thread.
    thread: Mutex<Option<Sender<()>>>,
}

impl GrowthWatch {
    /// Watches the grown cache of `engine` until it shrinks. Returns `false` if no thread can be started; the cache must then
    /// not grow further.
    pub(crate) fn begin(&self, engine: &Arc<Engine>) -> bool {
        let mut watching = self.lock();
        if watching.is_some() {
            return true;
        }
        let (sender, ended) = channel();
        let engine = Arc::downgrade(engine);
        let started = thread::Builder::new().name("floe-memory".to_owned()).spawn(move || watch(&engine, &ended));
        *watching = started.is_ok().then_some(sender);
        started.is_ok()
    }

    fn end(&self) {
        *self.lock() = None;
    }

    fn lock(&self) -> MutexGuard<'_, Option<Sender<()>>> {
        self.thread.lock()
    }
}

/// Waits until the cache must shrink, and shrinks it.
fn watch(engine: &Weak<Engine>, ended: &Receiver<()>) {
    let (mut lookups, mut used_at) = (0, Instant::now());
    while ended.recv_timeout(LOOK_INTERVAL) == Err(RecvTimeoutError::Timeout) {
        let Some(engine) = engine.upgrade() else { break };
        let counters = engine.blocks.counters(&engine.pool);
        let now = counters.hits + counters.misses + counters.joins;
        if now != lookups {
            (lookups, used_at) = (now, Instant::now());
        }
        // Tuning may have shrunk the cache.
        let is_over = !engine.pool.has_grown();
        if is_over || used_at.elapsed() >= UNUSED_MAX || engine.pool.is_memory_scarce() {
            engine.growth.end();
            if is_over {
                // It may have grown again before the watch ended.
                engine.watch_growth();
            } else {
                engine.shrink_cache();
            }
            break;
        }
    }
}
