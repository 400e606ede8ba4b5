//! The state of one thread of the engine.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
};

use floe_sync::{Mutex, MutexGuard};

use crate::{
    Priority,
    threads::{
        cpu_pressure::CpuPressure,
        scheduling_sys::{
            ThreadId, bind_this_thread, nice_level, real_time_level, schedule, schedule_started_thread, set_real_time,
            unbind_this_thread, unschedule,
        },
    },
};

/// The scheduling and the counters of one thread of the engine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WorkerStatus {
    /// The thread's name, as `ps` and traces show it.
    pub name: String,
    /// The CPU to which the thread is bound.
    pub cpu: Option<usize>,
    /// The requested scheduling.
    pub asked: Priority,
    /// The actual scheduling.
    pub got: Priority,
    /// Tasks executed.
    pub tasks: u64,
    /// How often the thread gave up real-time priority because it worked too long without a pause.
    pub yielded: u64,
    /// How often the thread was kept from its CPU by real-time throttling or by a thread of higher priority.
    pub throttled: u64,
}

/// The state of one thread, shared with status queries.
#[derive(Debug)]
pub(crate) struct WorkerRecord {
    name: String,
    cpu: Option<usize>,
    follows: Option<Arc<CpuPressure>>,
    scheduled: Mutex<Scheduled>,
    tasks: AtomicU64,
    yielded: AtomicU64,
    throttled: AtomicU64,
}

/// How a thread is scheduled.
#[derive(Debug)]
struct Scheduled {
    asked: Priority,
    got: Priority,
    state: State,
}

/// The state of a thread.
#[derive(Clone, Copy, Debug)]
enum State {
    /// It has had no turn yet.
    Starting {
        /// Whether its creator has made it real-time.
        is_real_time: bool,
    },
    /// It runs, and had this nice level at first.
    Running(ThreadId, i8),
    /// It has ended, or belongs to another engine.
    Ended,
}

impl WorkerRecord {
    /// Creates the record of a thread. With [`Priority::Auto`], a thread that `follows` a pressure is time-shared while
    /// CPUs are not short.
    pub(crate) fn new(
        name: String,
        cpu: Option<usize>,
        asked: Priority,
        follows: Option<Arc<CpuPressure>>,
    ) -> Arc<Self> {
        let zero = || AtomicU64::new(0);
        Arc::new(Self {
            name,
            cpu,
            follows,
            scheduled: Mutex::new(Scheduled {
                asked,
                got: Priority::Normal,
                state: State::Starting { is_real_time: false },
            }),
            tasks: zero(),
            yielded: zero(),
            throttled: zero(),
        })
    }

    /// Starts the thread, which is scheduled before its first turn as far as that is permitted, and executes `work`.
    ///
    /// # Errors
    /// The operating system refuses to start a thread.
    pub(crate) fn start(self: &Arc<Self>, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let record = Arc::clone(self);
        let started = thread::Builder::new().name(self.name.clone()).spawn(move || {
            if record.cpu.is_none() {
                // Its starter may be a session thread that is bound to a CPU.
                let _ = unbind_this_thread();
            }
            record.attach();
            work();
        });
        let mut scheduled = self.scheduled();
        match (&started, scheduled.state) {
            (Ok(thread), State::Starting { .. }) => {
                let is_real_time = schedule_started_thread(thread, self.effective_priority(scheduled.asked));
                scheduled.state = State::Starting { is_real_time };
            }
            (Ok(_), State::Running(..) | State::Ended) => {}
            (Err(_), _) => scheduled.state = State::Ended,
        }
        started.map(drop)
    }

    /// Schedules and binds the calling thread according to the record.
    pub(crate) fn attach(&self) {
        if let Some(cpu) = self.cpu {
            // If the CPU went offline meanwhile, the thread stays where it may run.
            let _ = bind_this_thread(cpu);
        }
        let thread = ThreadId::current();
        let mut scheduled = self.scheduled();
        let priority = self.effective_priority(scheduled.asked);
        if matches!(scheduled.state, State::Starting { is_real_time: true }) && real_time_level(priority).is_none() {
            // The pressure has changed since.
            let _ = set_real_time(thread, None);
        }
        scheduled.state = State::Running(thread, nice_level(thread));
        scheduled.got = schedule(thread, priority);
    }

    /// Notes that the thread has ended or belongs to another engine. The record no longer changes its scheduling.
    pub(crate) fn detach(&self) {
        self.scheduled().state = State::Ended;
    }

    /// Whether the thread has ended or belongs to another engine.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.scheduled().state, State::Ended)
    }

    /// Changes the priority of the thread. Any thread may call this.
    pub(crate) fn reschedule(&self, priority: Priority) {
        let mut scheduled = self.scheduled();
        scheduled.asked = priority;
        self.apply(&mut scheduled);
    }

    /// Adapts the scheduling of the thread to the pressure that it follows. Any thread may call this.
    pub(crate) fn follow(&self) {
        let mut scheduled = self.scheduled();
        if scheduled.asked == Priority::Auto {
            self.apply(&mut scheduled);
        }
    }

    fn apply(&self, scheduled: &mut Scheduled) {
        if let State::Running(thread, nice_level) = scheduled.state {
            unschedule(thread, nice_level);
            scheduled.got = schedule(thread, self.effective_priority(scheduled.asked));
        }
    }

    /// The priority to request from the kernel when `asked` was requested from the engine.
    fn effective_priority(&self, asked: Priority) -> Priority {
        match &self.follows {
            Some(pressure) if asked == Priority::Auto && !pressure.is_high() => Priority::Nice(-20),
            _ => asked,
        }
    }

    fn scheduled(&self) -> MutexGuard<'_, Scheduled> {
        self.scheduled.lock()
    }

    pub(super) fn is_real_time(&self) -> bool {
        matches!(self.scheduled().got, Priority::Fifo(_))
    }

    /// Moves the calling thread, which must be this one, to time sharing, and counts that. Returns whether it
    /// succeeded.
    pub(super) fn yield_real_time(&self) -> bool {
        let has_yielded = match self.scheduled().state {
            State::Running(thread, _) => set_real_time(thread, None).is_ok(),
            State::Starting { .. } | State::Ended => false,
        };
        self.yielded.fetch_add(has_yielded.into(), Relaxed);
        has_yielded
    }

    /// Counts that the thread was kept from running.
    pub(super) fn note_throttled(&self) {
        self.throttled.fetch_add(1, Relaxed);
    }

    /// Makes the calling thread, which must be this one, real-time again if its scheduling is real-time.
    pub(super) fn restore_real_time(&self) {
        let scheduled = self.scheduled();
        if let (State::Running(thread, _), Priority::Fifo(level)) = (scheduled.state, scheduled.got) {
            let _ = set_real_time(thread, Some(level));
        }
    }

    /// Counts a task that the thread has executed.
    pub(super) fn note_task(&self) {
        self.tasks.fetch_add(1, Relaxed);
    }

    pub(crate) fn status(&self) -> WorkerStatus {
        let (asked, got) = {
            let scheduled = self.scheduled();
            (scheduled.asked, scheduled.got)
        };
        WorkerStatus {
            name: self.name.clone(),
            cpu: self.cpu,
            asked,
            got,
            tasks: self.tasks.load(Relaxed),
            yielded: self.yielded.load(Relaxed),
            throttled: self.throttled.load(Relaxed),
        }
    }
}

#[cfg(all(test, not(miri), not(feature = "shuttle")))]
mod tests {
    use std::{fs::File, io::Write as _, thread};

    use super::*;

    #[test]
    fn a_following_thread_is_real_time_only_under_cpu_pressure() {
        let mut told = tempfile::NamedTempFile::new().expect("a file");
        let pressure = Arc::new(CpuPressure::of(Some(File::open(told.path()).expect("ours"))));
        thread::scope(|scope| {
            scope.spawn(|| {
                let places = [None, Some(Arc::clone(&pressure))].map(|follows| {
                    let record = WorkerRecord::new("a thread".to_owned(), None, Priority::Auto, follows);
                    record.attach();
                    record
                });
                let [stays, follows] = &places;
                assert_eq!(follows.status().got, stays.status().got, "nothing is known yet");
                told.write_all(b"0.00 0.00 0.00 0/80 7\n").expect("ours");
                assert!(pressure.look());
                follows.follow();
                assert!(!follows.is_real_time());
                follows.reschedule(Priority::Fifo(1));
                stays.reschedule(Priority::Fifo(1));
                assert_eq!(follows.status().got, stays.status().got, "an explicit priority counts");
                follows.reschedule(Priority::Auto);
                assert!(!follows.is_real_time());
                follows.detach();
                follows.reschedule(Priority::Fifo(1));
                assert!(!follows.is_real_time(), "the record has left its thread");
            });
        });
    }
}
