//! Decoded trace events.

use std::fmt;

/// One event of the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The time in nanoseconds of the boot clock.
    pub time_ns: u64,
    /// The CPU.
    pub cpu: u32,
    /// The current thread of that CPU; 0 is the idle task.
    pub tid: i32,
    /// The kind of event.
    pub kind: EventKind,
}

/// The kind of event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// `sched_switch`: a CPU switches threads.
    Switch(Switch),
    /// `sched_waking`: the current thread wakes another.
    Waking(Wakeup),
    /// `sched_wakeup_new`: a new thread becomes runnable.
    WakeupNew(Wakeup),
    /// `task_newtask`: the current thread created a thread or process.
    NewTask {
        /// The new thread.
        tid: i32,
        /// The name it inherits.
        name: Name,
        /// The flags of clone(2).
        clone_flags: u64,
    },
    /// `sched_process_exec`: a process executes another program.
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
    /// `task_rename`: a thread changes its name.
    Rename {
        /// The thread.
        tid: i32,
        /// The old name.
        old_name: Name,
        /// The new name.
        new_name: Name,
    },
    /// `workqueue_queue_work`: a work item is queued.
    QueueWork {
        /// The address of the work item.
        work: u64,
        /// The address of its function.
        function: u64,
        /// The queue's name.
        workqueue: Name,
        /// The requested CPU.
        asked_cpu: i32,
        /// The assigned CPU.
        cpu: i32,
    },
    /// `workqueue_execute_start`: a worker starts a work item.
    WorkStart {
        /// The address of the work item.
        work: u64,
        /// The address of its function.
        function: u64,
    },
    /// `workqueue_execute_end`: a worker finishes a work item.
    WorkEnd {
        /// The address of the work item.
        work: u64,
        /// The address of its function.
        function: u64,
    },
    /// `mm_vmscan_direct_reclaim_begin`: the current thread has to reclaim memory for an allocation.
    ReclaimBegin {
        /// log2 of the requested pages.
        order: i32,
    },
    /// `print`: the current thread reports that it has just decompressed a block.
    Decode {
        /// The duration in nanoseconds.
        duration_ns: u64,
        /// The number of decoded bytes.
        byte_count: u64,
    },
    /// `mm_vmscan_direct_reclaim_end`: direct reclaim ends.
    ReclaimEnd {
        /// The number of reclaimed pages.
        reclaimed_pages: u64,
    },
}

/// A switch of threads on a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switch {
    /// The thread that leaves the CPU.
    pub previous_tid: i32,
    /// Its name.
    pub previous_name: Name,
    /// Its kernel priority: below 100 real-time, 120 normal.
    pub previous_priority: i32,
    /// Its raw state.
    pub previous_state: i64,
    /// Whether it is still runnable: it was preempted, or yielded.
    pub previous_is_runnable: bool,
    /// The thread that enters the CPU.
    pub next_tid: i32,
    /// Its name.
    pub next_name: Name,
    /// Its priority.
    pub next_priority: i32,
}

/// A wakeup of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wakeup {
    /// The thread.
    pub tid: i32,
    /// Its name.
    pub name: Name,
    /// Its priority.
    pub priority: i32,
    /// The target CPU.
    pub target_cpu: i32,
}

/// The name of a thread or workqueue; the kernel limits it to 32 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name {
    bytes: [u8; Name::SIZE_MAX],
    length: u8,
}

impl Name {
    /// The longest name in bytes; longer ones are cut.
    pub const SIZE_MAX: usize = 32;

    /// Creates a name.
    pub fn new(text: &[u8]) -> Self {
        let mut bytes = [0; Self::SIZE_MAX];
        let length = text.len().min(Self::SIZE_MAX);
        bytes[..length].copy_from_slice(&text[..length]);
        Self { bytes, length: u8::try_from(length).unwrap_or(0) }
    }

    /// The bytes.
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
