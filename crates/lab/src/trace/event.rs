//! What the collector's events say, decoded.

use std::fmt;

/// One event of the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// When, in nanoseconds of the boot clock.
    pub time_ns: u64,
    /// On which CPU.
    pub cpu: u32,
    /// The thread that was running there; 0 is the idle task.
    pub tid: i32,
    /// What happened.
    pub kind: EventKind,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// `sched_switch`: a CPU goes from one thread to another.
    Switch(Switch),
    /// `sched_waking`: the running thread wakes another.
    Waking(Wakeup),
    /// `sched_wakeup_new`: a thread becomes eligible to run for the first time.
    WakeupNew(Wakeup),
    /// `task_newtask`: the running thread made another thread or process.
    NewTask {
        /// The new thread.
        tid: i32,
        /// The name it inherits.
        name: Name,
        /// The flags of clone(2).
        clone_flags: u64,
    },
    /// `sched_process_exec`: a process runs another program now.
    Exec {
        /// The process.
        tid: i32,
    },
    /// `sched_process_exit`: a thread ends.
    Exit {
        /// The thread.
        tid: i32,
        /// Its name.
        name: Name,
        /// Its priority.
        priority: i32,
    },
    /// `task_rename`: a thread takes another name.
    Rename {
        /// The thread.
        tid: i32,
        /// The name before.
        old_name: Name,
        /// The name from now on.
        new_name: Name,
    },
    /// `workqueue_queue_work`: a work item waits for a worker.
    QueueWork {
        /// The address of the work item.
        work: u64,
        /// The address of its function.
        function: u64,
        /// The queue's name.
        workqueue: Name,
        /// The CPU asked for.
        asked_cpu: i32,
        /// The CPU given.
        cpu: i32,
    },
    /// `workqueue_execute_start`: a worker begins with a work item.
    WorkStart {
        /// The address of the work item.
        work: u64,
        /// The address of its function.
        function: u64,
    },
    /// `workqueue_execute_end`: a worker is done with a work item.
    WorkEnd {
        /// The address of the work item.
        work: u64,
        /// The address of its function.
        function: u64,
    },
    /// `mm_vmscan_direct_reclaim_begin`: the running thread has to free memory before it gets any.
    ReclaimBegin {
        /// Base-2 logarithm of the pages wanted.
        order: i32,
    },
    /// `print`: the running thread wrote that it has just decompressed a block.
    Decode {
        /// How long that took, in nanoseconds.
        duration_ns: u64,
        /// How many bytes it gave.
        byte_count: u64,
    },
    /// `mm_vmscan_direct_reclaim_end`: it has.
    ReclaimEnd {
        /// How many pages it freed.
        reclaimed_pages: u64,
    },
}

/// A CPU goes from one thread to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switch {
    /// The thread that ran until now.
    pub previous_tid: i32,
    /// Its name.
    pub previous_name: Name,
    /// Its priority as the kernel counts: below 100 real-time, 120 normal.
    pub previous_priority: i32,
    /// Its state as the kernel wrote it.
    pub previous_state: i64,
    /// Whether it could go on: it was preempted, or yielded.
    pub previous_is_runnable: bool,
    /// The thread that runs from now on.
    pub next_tid: i32,
    /// Its name.
    pub next_name: Name,
    /// Its priority.
    pub next_priority: i32,
}

/// A thread becomes eligible to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wakeup {
    /// The thread.
    pub tid: i32,
    /// Its name.
    pub name: Name,
    /// Its priority.
    pub priority: i32,
    /// The CPU meant for it.
    pub target_cpu: i32,
}

/// A thread's or workqueue's name, which the kernel keeps within 32 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name {
    bytes: [u8; Name::SIZE_MAX],
    length: u8,
}

impl Name {
    /// The longest name, in bytes; what is longer is cut.
    pub const SIZE_MAX: usize = 32;

    /// The name in `text`.
    pub fn new(text: &[u8]) -> Self {
        let mut bytes = [0; Self::SIZE_MAX];
        let length = text.len().min(Self::SIZE_MAX);
        bytes[..length].copy_from_slice(&text[..length]);
        Self { bytes, length: u8::try_from(length).unwrap_or(0) }
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

impl fmt::Display for Name {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&String::from_utf8_lossy(self.as_bytes()))
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:?}", String::from_utf8_lossy(self.as_bytes()))
    }
}
