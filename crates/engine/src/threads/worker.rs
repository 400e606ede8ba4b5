//! A worker thread, which executes the tasks of a queue.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use crate::{
    metrics::latency::{Latencies, Stage},
    threads::{
        cpu_pressure::CpuPressure,
        real_time,
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
    let executing = Arc::clone(&record);
    record.start(move || {
        let mut ended = None;
        while let Some(task) = queue.pop(ended, real_time::pause) {
            let Task { flow, work, queued } = task;
            ended = Some(flow);
            latencies.record(Stage::QueueWait, queued.elapsed());
            real_time::begin_work(&executing);
            let _working = pressure.as_ref().map(|pressure| pressure.work());
            // A task that panics has notified its waiters by being dropped. The thread continues.
            let _ = catch_unwind(AssertUnwindSafe(work));
            executing.note_task();
            real_time::check(Duration::ZERO);
        }
    })
}
