//! A worker thread, which executes the tasks of a queue.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread,
    time::Duration,
};

use crate::{
    metrics::latency::{Latencies, Stage},
    threads::{
        cpu_pressure::CpuPressure,
        real_time,
        scheduling_sys::unbind_this_thread,
        task_queue::{Task, TaskQueue},
        worker_record::WorkerRecord,
    },
};

/// Starts a thread that executes the tasks of `queue` until the queue is closed. If a `pressure` is given, the thread
/// counts as busy during each task; this is for threads that rarely wait.
pub(crate) fn spawn(
    record: Arc<WorkerRecord>,
    queue: Arc<TaskQueue>,
    latencies: Arc<Latencies>,
    pressure: Option<Arc<CpuPressure>>,
) -> io::Result<()> {
    thread::Builder::new().name(record.name().to_owned()).spawn(move || {
        // Its starter may be a session thread that is bound to a CPU.
        let _ = unbind_this_thread();
        record.attach();
        while let Some(task) = queue.pop(real_time::pause) {
            let Task { work, queued, .. } = task;
            latencies.record(Stage::QueueWait, queued.elapsed());
            real_time::begin_work(&record);
            let _working = pressure.as_ref().map(|pressure| pressure.work());
            // A task that panics has notified its waiters by being dropped. The thread continues.
            let _ = catch_unwind(AssertUnwindSafe(work));
            record.note_task();
            real_time::check(Duration::ZERO);
        }
    })?;
    Ok(())
}
