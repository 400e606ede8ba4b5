//! The threads of an engine. All of them are started here.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use floe_sync::{Mutex, RwLock};

use crate::{
    Priority, WorkerMode, WorkerStatus,
    metrics::latency::Latencies,
    threads::{
        cpu_pressure::{CpuPressure, Working},
        scheduling_sys::allowed_cpus,
        task_queue::{FlowLimit, Task, TaskQueue, Work},
        worker,
        worker_record::WorkerRecord,
    },
    turns::Flow,
};

/// The threads that wait for sources. One image has half of them at most, several images fewer each, so that some are left
/// while the sources of others do not answer. Beyond this number, each image has one.
const FETCH_THREADS: usize = 128;

/// Prefetch that takes longer than this waits for a source that does not answer. Another thread then serves the other images.
const STUCK_TIME: Duration = Duration::from_millis(100);

/// The interval at which the CPUs of this process are looked up, in milliseconds.
const CPU_CHECK_MS: u64 = 1000;

/// The threads of an engine: those that decompress, with one queue for each or one for all, and those that wait for
/// sources.
pub(crate) struct Workers {
    /// Changed only while `lanes` is locked for writing.
    mode: AtomicU8,
    priority: Mutex<Priority>,
    latencies: Arc<Latencies>,
    lanes: RwLock<Vec<Lane>>,
    fetch_queue: Arc<TaskQueue>,
    fetch_threads: Mutex<Vec<Arc<WorkerRecord>>>,
    around: SerialThread,
    storing: SerialThread,
    adopted_threads: Mutex<Vec<Arc<WorkerRecord>>>,
    cpu_pressure: Arc<CpuPressure>,
    started: Instant,
    cpus_checked_ms: AtomicU64,
}

/// The only thread of its kind, started for its first task. It executes the tasks of an image in their order. While it waits
/// for a source that does not answer, another one serves the other images.
struct SerialThread {
    name: &'static str,
    /// The pressure under which it has the priority of the decompression threads; `None` if it always has.
    follows: Option<Arc<CpuPressure>>,
    queue: Arc<TaskQueue>,
    /// Empty until the thread runs.
    threads: Mutex<Vec<Arc<WorkerRecord>>>,
}

/// A queue and its threads.
struct Lane {
    cpu: Option<usize>,
    queue: Arc<TaskQueue>,
    records: Vec<Arc<WorkerRecord>>,
}

impl Drop for Lane {
    /// Ends the threads. Queued tasks must have been moved before.
    fn drop(&mut self) {
        drop(self.queue.close());
    }
}

impl Workers {
    /// Starts the threads that decompress.
    ///
    /// # Errors
    /// The operating system refuses to start a thread.
    pub(crate) fn start(mode: WorkerMode, priority: Priority, latencies: Arc<Latencies>) -> io::Result<Self> {
        let cpu_pressure = Arc::new(CpuPressure::new());
        let workers = Self {
            mode: AtomicU8::new(mode as u8),
            priority: Mutex::new(priority),
            latencies,
            lanes: RwLock::default(),
            fetch_queue: Arc::new(TaskQueue::with_limit(FlowLimit::Left(FETCH_THREADS))),
            fetch_threads: Mutex::default(),
            around: SerialThread::new("floe-around", Some(Arc::clone(&cpu_pressure))),
            storing: SerialThread::new("floe-store", None),
            adopted_threads: Mutex::default(),
            cpu_pressure,
            started: Instant::now(),
            cpus_checked_ms: AtomicU64::new(0),
        };
        let lanes = workers.lanes_for(mode)?;
        *workers.lanes.write() = lanes;
        Ok(workers)
    }

    pub(crate) fn mode(&self) -> WorkerMode {
        match self.mode.load(Relaxed) {
            mode if mode == WorkerMode::PerCpu as u8 => WorkerMode::PerCpu,
            mode if mode == WorkerMode::Shared as u8 => WorkerMode::Shared,
            _ => WorkerMode::Inline,
        }
    }

    /// Whether CPU pressure was observed.
    pub(crate) fn cpus_are_short(&self) -> bool {
        self.cpu_pressure.was_seen_high()
    }

    /// Changes which threads decompress.
    ///
    /// # Errors
    /// The operating system refuses to start a thread; nothing changes.
    pub(crate) fn set_mode(&self, mode: WorkerMode) -> io::Result<()> {
        if mode == self.mode() {
            return Ok(());
        }
        let next = self.lanes_for(mode)?;
        let mut lanes = self.lanes.write();
        let gone = std::mem::replace(&mut *lanes, next);
        self.mode.store(mode as u8, Relaxed);
        drop(lanes);
        self.move_work(&gone);
        Ok(())
    }

    /// The priority of the threads.
    pub(crate) fn priority(&self) -> Priority {
        *self.priority.lock()
    }

    /// Changes the priority of all threads.
    pub(crate) fn set_priority(&self, priority: Priority) {
        // Threads started from here on have the new priority already.
        *self.priority.lock() = priority;
        let lanes = self.lanes.read();
        lanes.iter().flat_map(|lane| &lane.records).for_each(|record| record.reschedule(priority));
        drop(lanes);
        for others in [&self.fetch_threads, &self.adopted_threads, &self.around.threads, &self.storing.threads] {
            others.lock().iter().for_each(|record| record.reschedule(priority));
        }
    }

    /// Executes `work` of `flow` on a decompression thread: the one of this CPU if it is idle, else another idle one, else the
    /// one with the shortest queue. Without such threads, `work` runs here.
    pub(crate) fn decompress(&self, flow: Flow, work: Work) {
        self.follow_cpus();
        let task = Task::new(flow, work);
        let lanes = self.lanes.read();
        let here = (lanes.len() > 1).then(rustix::thread::sched_getcpu);
        let own = lanes.iter().find(|lane| lane.cpu == here && lane.queue.has_idle_thread());
        let free = own.or_else(|| lanes.iter().find(|lane| lane.queue.has_idle_thread()));
        let lane = free.or_else(|| lanes.iter().min_by_key(|lane| lane.queue.len()));
        let refused = match lane {
            Some(lane) => lane.queue.push(task).err(),
            None => Some(task),
        };
        drop(lanes);
        if let Some(task) = refused {
            (task.work)();
        }
    }

    /// Executes `work` of `flow` on a thread that may wait.
    pub(crate) fn fetch(&self, flow: Flow, work: Work) {
        if self.mode() == WorkerMode::Inline {
            return work();
        }
        match self.fetch_queue.push(Task::new(flow, work)) {
            Ok(true) => {}
            Ok(false) => self.start_fetch_thread(flow),
            Err(task) => drop(task),
        }
    }

    /// Executes `work` of `flow` on the thread that reads around. Drops `work` and returns `false` if that thread cannot be
    /// started now. While CPUs are short, the thread has the priority of the decompression threads, because other programs would
    /// keep what it prefetches from being there in time.
    pub(crate) fn run_around(&self, flow: Flow, work: Work) -> bool {
        self.around.run(self, Task::new(flow, work))
    }

    /// Executes `work` of `flow`, which may wait, on the thread that pushes decoded bytes into the page cache. Drops `work` and
    /// returns `false` if that thread cannot be started now. The thread has the priority of the decompression threads, so
    /// that they cannot keep it from running for long.
    pub(crate) fn run_store(&self, flow: Flow, work: Work) -> bool {
        self.storing.run(self, Task::new(flow, work))
    }

    /// Adds the record of a thread that serves requests, until it is detached. The thread has yet to be attached or started.
    pub(crate) fn adopt(&self, name: String, cpu: Option<usize>) -> Arc<WorkerRecord> {
        self.look();
        let mut threads = self.adopted_threads.lock();
        let record = WorkerRecord::new(name, cpu, self.priority(), Some(Arc::clone(&self.cpu_pressure)));
        threads.retain(|record| !record.has_ended());
        threads.push(Arc::clone(&record));
        record
    }

    /// Counts the calling thread as busy until the result is dropped, and looks at the CPU pressure.
    pub(crate) fn work(&self) -> Working<'_> {
        let working = self.cpu_pressure.work();
        self.look();
        working
    }

    /// Looks at the CPU pressure, unless that was done just now, and adapts the threads that follow it.
    fn look(&self) {
        if self.cpu_pressure.look() {
            for others in [&self.fetch_threads, &self.adopted_threads, &self.around.threads] {
                others.lock().iter().for_each(|record| record.follow());
            }
        }
    }

    /// Returns the scheduling and the counters of each thread.
    pub(crate) fn status(&self) -> Vec<WorkerStatus> {
        let lanes = self.lanes.read();
        let mut all: Vec<_> = lanes.iter().flat_map(|lane| &lane.records).map(|record| record.status()).collect();
        for others in [&self.fetch_threads, &self.adopted_threads, &self.around.threads, &self.storing.threads] {
            all.extend(others.lock().iter().map(|record| record.status()));
        }
        all
    }

    fn lanes_for(&self, mode: WorkerMode) -> io::Result<Vec<Lane>> {
        let cpus = allowed_cpus();
        match mode {
            WorkerMode::PerCpu => cpus.iter().map(|cpu| self.lane(Some(*cpu), 1)).collect(),
            WorkerMode::Shared => Ok(vec![self.lane(None, cpus.len())?]),
            WorkerMode::Inline => Ok(Vec::new()),
        }
    }

    /// Ends the threads of lanes, and moves their queued tasks to other threads.
    fn move_work(&self, gone: &[Lane]) {
        let left: Vec<_> = gone.iter().flat_map(|lane| lane.queue.close()).collect();
        left.into_iter().for_each(|task| self.decompress(task.flow, task.work));
    }

    fn lane(&self, cpu: Option<usize>, thread_count: usize) -> io::Result<Lane> {
        let mut lane = Lane { cpu, queue: Arc::default(), records: Vec::new() };
        for index in 0..thread_count {
            let name = match cpu {
                Some(cpu) => format!("floe-dec/{cpu}"),
                None => format!("floe-dec/u{index}"),
            };
            let record = WorkerRecord::new(name, cpu, self.priority(), None);
            let pressure = Some(Arc::clone(&self.cpu_pressure));
            worker::spawn(Arc::clone(&record), Arc::clone(&lane.queue), Arc::clone(&self.latencies), pressure)?;
            lane.records.push(record);
        }
        Ok(lane)
    }

    fn start_fetch_thread(&self, flow: Flow) {
        let mut threads = self.fetch_threads.lock();
        if threads.len() >= FETCH_THREADS && self.fetch_queue.is_running(flow) {
            return;
        }
        let follows = Some(Arc::clone(&self.cpu_pressure));
        let record = WorkerRecord::new(format!("floe-io/{}", threads.len()), None, self.priority(), follows);
        let queue = Arc::clone(&self.fetch_queue);
        let spawned = worker::spawn(Arc::clone(&record), queue, Arc::clone(&self.latencies), None);
        match spawned {
            Ok(()) => threads.push(record),
            Err(_) if threads.is_empty() => {
                // Without a single fetch thread the queued tasks would never run, so they run here.
                drop(threads);
                while let Some(task) = self.fetch_queue.pop_now() {
                    (task.work)();
                }
            }
            Err(_) => {}
        }
    }

    /// Adapts the lanes to CPU hot-plug, cpusets and `taskset`.
    fn follow_cpus(&self) {
        let now_ms = self.started.elapsed().as_millis() as u64;
        let checked_ms = self.cpus_checked_ms.load(Relaxed);
        if self.mode() != WorkerMode::PerCpu
            || now_ms < checked_ms + CPU_CHECK_MS
            || self.cpus_checked_ms.compare_exchange(checked_ms, now_ms, Relaxed, Relaxed).is_err()
        {
            return;
        }
        let cpus = allowed_cpus();
        let lanes = self.lanes.read();
        if lanes.iter().filter_map(|lane| lane.cpu).eq(cpus.iter().copied()) {
            return;
        }
        drop(lanes);
        let mut lanes = self.lanes.write();
        if self.mode() != WorkerMode::PerCpu {
            return;
        }
        let (kept, gone): (Vec<_>, Vec<_>) =
            std::mem::take(&mut *lanes).into_iter().partition(|lane| lane.cpu.is_some_and(|cpu| cpus.contains(&cpu)));
        *lanes = kept;
        for cpu in cpus {
            if !lanes.iter().any(|lane| lane.cpu == Some(cpu))
                && let Ok(lane) = self.lane(Some(cpu), 1)
            {
                lanes.push(lane);
            }
        }
        lanes.sort_by_key(|lane| lane.cpu);
        drop(lanes);
        self.move_work(&gone);
    }
}

impl SerialThread {
    fn new(name: &'static str, follows: Option<Arc<CpuPressure>>) -> Self {
        let queue = Arc::new(TaskQueue::with_limit(FlowLimit::One));
        Self { name, follows, queue, threads: Mutex::default() }
    }

    /// Executes a task on the thread, which is started if it does not run, or is stuck. Drops the task and returns `false` if
    /// there is no thread and none can be started; the next call tries again.
    fn run(&self, workers: &Workers, task: Task) -> bool {
        let mut threads = self.threads.lock();
        // Another thread could not run a task behind one of its own image.
        if self.queue.all_stuck_count(STUCK_TIME) == Some(threads.len()) && !self.queue.is_running(task.flow) {
            let record = WorkerRecord::new(self.name.to_owned(), None, workers.priority(), self.follows.clone());
            let (queue, latencies) = (Arc::clone(&self.queue), Arc::clone(&workers.latencies));
            let pressure = Some(Arc::clone(&workers.cpu_pressure));
            let spawned = worker::spawn(Arc::clone(&record), queue, latencies, pressure);
            threads.extend(spawned.ok().map(|()| record));
        }
        let is_running = !threads.is_empty();
        drop(threads);
        is_running && self.queue.push(task).is_ok()
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        drop(self.fetch_queue.close());
        drop(self.around.queue.close());
        drop(self.storing.queue.close());
    }
}

#[cfg(all(test, not(miri), not(feature = "shuttle")))]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_changed_priority_applies_to_the_threads_that_prefetch() {
        let workers =
            Workers::start(WorkerMode::PerCpu, Priority::Normal, Arc::new(Latencies::new())).expect("threads");
        let (ran, has_run) = channel();
        let work = || -> Work {
            let ran = ran.clone();
            Box::new(move || ran.send(()).expect("a waiter"))
        };
        assert!(workers.run_around(Flow::ENGINE, work()) && workers.run_store(Flow::ENGINE, work()));
        has_run.iter().take(2).for_each(drop);
        workers.set_priority(Priority::Nice(5));
        for name in ["floe-around", "floe-store"] {
            let status = workers.status().into_iter().find(|status| status.name == name);
            assert_eq!(status.map(|status| status.got), Some(Priority::Nice(5)), "{name}");
        }
    }
}
