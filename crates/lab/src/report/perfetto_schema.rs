//! The messages of Perfetto's trace format that our traces contain, with their public field numbers.
//!
//! The format is described at <https://perfetto.dev/docs/reference/trace-packet-proto>.

use prost::Message;

/// Clocks of Perfetto's `BuiltinClock`.
pub(super) const CLOCK_REALTIME: u32 = 1;
pub(super) const CLOCK_MONOTONIC: u32 = 3;
pub(super) const CLOCK_BOOTTIME: u32 = 6;
/// `TrackEvent.Type`.
pub(super) const SLICE_BEGIN: i32 = 1;
pub(super) const SLICE_END: i32 = 2;
/// `FtraceStats.Phase`.
pub(super) const START_OF_TRACE: i32 = 1;
pub(super) const END_OF_TRACE: i32 = 2;

#[derive(Clone, PartialEq, Message)]
pub(super) struct TracePacket {
    #[prost(uint64, optional, tag = "8")]
    pub(super) timestamp: Option<u64>,
    #[prost(uint32, optional, tag = "58")]
    pub(super) timestamp_clock_id: Option<u32>,
    #[prost(uint32, optional, tag = "10")]
    pub(super) trusted_packet_sequence_id: Option<u32>,
    #[prost(message, optional, tag = "6")]
    pub(super) clock_snapshot: Option<ClockSnapshot>,
    #[prost(message, optional, tag = "45")]
    pub(super) system_info: Option<SystemInfo>,
    #[prost(message, optional, tag = "2")]
    pub(super) process_tree: Option<ProcessTreePacket>,
    #[prost(message, optional, tag = "1")]
    pub(super) ftrace_events: Option<FtraceEventBundle>,
    #[prost(message, optional, tag = "34")]
    pub(super) ftrace_stats: Option<FtraceStats>,
    #[prost(message, optional, tag = "60")]
    pub(super) track_descriptor: Option<TrackDescriptor>,
    #[prost(message, optional, tag = "11")]
    pub(super) track_event: Option<TrackEvent>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ClockSnapshot {
    #[prost(message, repeated, tag = "1")]
    pub(super) clocks: Vec<Clock>,
    #[prost(int32, optional, tag = "2")]
    pub(super) primary_trace_clock: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Clock {
    #[prost(uint32, optional, tag = "1")]
    pub(super) clock_id: Option<u32>,
    #[prost(uint64, optional, tag = "2")]
    pub(super) timestamp: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SystemInfo {
    #[prost(message, optional, tag = "1")]
    pub(super) utsname: Option<Utsname>,
    #[prost(uint32, optional, tag = "6")]
    pub(super) page_size: Option<u32>,
    #[prost(uint32, optional, tag = "8")]
    pub(super) num_cpus: Option<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Utsname {
    #[prost(string, optional, tag = "1")]
    pub(super) sysname: Option<String>,
    #[prost(string, optional, tag = "2")]
    pub(super) version: Option<String>,
    #[prost(string, optional, tag = "3")]
    pub(super) release: Option<String>,
    #[prost(string, optional, tag = "4")]
    pub(super) machine: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ProcessTreePacket {
    #[prost(message, repeated, tag = "1")]
    pub(super) processes: Vec<ProcessPacket>,
    #[prost(message, repeated, tag = "2")]
    pub(super) threads: Vec<ThreadPacket>,
    #[prost(uint64, optional, tag = "3")]
    pub(super) collection_end_timestamp: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ProcessPacket {
    #[prost(int32, optional, tag = "1")]
    pub(super) pid: Option<i32>,
    #[prost(int32, optional, tag = "2")]
    pub(super) ppid: Option<i32>,
    #[prost(string, repeated, tag = "3")]
    pub(super) cmdline: Vec<String>,
    #[prost(int32, optional, tag = "5")]
    pub(super) uid: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ThreadPacket {
    #[prost(int32, optional, tag = "1")]
    pub(super) tid: Option<i32>,
    #[prost(string, optional, tag = "2")]
    pub(super) name: Option<String>,
    #[prost(int32, optional, tag = "3")]
    pub(super) tgid: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct FtraceEventBundle {
    #[prost(uint32, optional, tag = "1")]
    pub(super) cpu: Option<u32>,
    #[prost(message, repeated, tag = "2")]
    pub(super) event: Vec<FtraceEvent>,
    #[prost(bool, optional, tag = "3")]
    pub(super) lost_events: Option<bool>,
}

/// An event. In Perfetto's definition, all fields except the first two are one `oneof`, which has the same encoding.
#[derive(Clone, PartialEq, Message)]
pub(super) struct FtraceEvent {
    #[prost(uint64, optional, tag = "1")]
    pub(super) timestamp: Option<u64>,
    #[prost(uint32, optional, tag = "2")]
    pub(super) pid: Option<u32>,
    #[prost(message, optional, tag = "4")]
    pub(super) sched_switch: Option<SchedSwitch>,
    #[prost(message, optional, tag = "3")]
    pub(super) print: Option<Print>,
    #[prost(message, optional, tag = "20")]
    pub(super) sched_waking: Option<SchedWaking>,
    #[prost(message, optional, tag = "114")]
    pub(super) sched_wakeup_new: Option<SchedWaking>,
    #[prost(message, optional, tag = "235")]
    pub(super) task_newtask: Option<TaskNewtask>,
    #[prost(message, optional, tag = "236")]
    pub(super) task_rename: Option<TaskRename>,
    #[prost(message, optional, tag = "238")]
    pub(super) sched_process_exit: Option<SchedProcessExit>,
    #[prost(message, optional, tag = "57")]
    pub(super) workqueue_execute_end: Option<WorkqueueExecute>,
    #[prost(message, optional, tag = "58")]
    pub(super) workqueue_execute_start: Option<WorkqueueExecute>,
    #[prost(message, optional, tag = "59")]
    pub(super) workqueue_queue_work: Option<WorkqueueQueueWork>,
    #[prost(message, optional, tag = "46")]
    pub(super) mm_vmscan_direct_reclaim_begin: Option<ReclaimBegin>,
    #[prost(message, optional, tag = "47")]
    pub(super) mm_vmscan_direct_reclaim_end: Option<ReclaimEnd>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SchedSwitch {
    #[prost(string, optional, tag = "1")]
    pub(super) prev_comm: Option<String>,
    #[prost(int32, optional, tag = "2")]
    pub(super) prev_pid: Option<i32>,
    #[prost(int32, optional, tag = "3")]
    pub(super) prev_prio: Option<i32>,
    #[prost(int64, optional, tag = "4")]
    pub(super) prev_state: Option<i64>,
    #[prost(string, optional, tag = "5")]
    pub(super) next_comm: Option<String>,
    #[prost(int32, optional, tag = "6")]
    pub(super) next_pid: Option<i32>,
    #[prost(int32, optional, tag = "7")]
    pub(super) next_prio: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SchedWaking {
    #[prost(string, optional, tag = "1")]
    pub(super) comm: Option<String>,
    #[prost(int32, optional, tag = "2")]
    pub(super) pid: Option<i32>,
    #[prost(int32, optional, tag = "3")]
    pub(super) prio: Option<i32>,
    #[prost(int32, optional, tag = "4")]
    pub(super) success: Option<i32>,
    #[prost(int32, optional, tag = "5")]
    pub(super) target_cpu: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TaskNewtask {
    #[prost(int32, optional, tag = "1")]
    pub(super) pid: Option<i32>,
    #[prost(string, optional, tag = "2")]
    pub(super) comm: Option<String>,
    #[prost(uint64, optional, tag = "3")]
    pub(super) clone_flags: Option<u64>,
    #[prost(int32, optional, tag = "4")]
    pub(super) oom_score_adj: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TaskRename {
    #[prost(int32, optional, tag = "1")]
    pub(super) pid: Option<i32>,
    #[prost(string, optional, tag = "2")]
    pub(super) oldcomm: Option<String>,
    #[prost(string, optional, tag = "3")]
    pub(super) newcomm: Option<String>,
    #[prost(int32, optional, tag = "4")]
    pub(super) oom_score_adj: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SchedProcessExit {
    #[prost(string, optional, tag = "1")]
    pub(super) comm: Option<String>,
    #[prost(int32, optional, tag = "2")]
    pub(super) pid: Option<i32>,
    #[prost(int32, optional, tag = "4")]
    pub(super) prio: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WorkqueueExecute {
    #[prost(uint64, optional, tag = "1")]
    pub(super) work: Option<u64>,
    #[prost(uint64, optional, tag = "2")]
    pub(super) function: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WorkqueueQueueWork {
    #[prost(uint64, optional, tag = "1")]
    pub(super) work: Option<u64>,
    #[prost(uint64, optional, tag = "2")]
    pub(super) function: Option<u64>,
    #[prost(int32, optional, tag = "4")]
    pub(super) req_cpu: Option<i32>,
    #[prost(int32, optional, tag = "5")]
    pub(super) cpu: Option<i32>,
    #[prost(string, optional, tag = "6")]
    pub(super) workqueue: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ReclaimBegin {
    #[prost(int32, optional, tag = "1")]
    pub(super) order: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ReclaimEnd {
    #[prost(uint64, optional, tag = "1")]
    pub(super) nr_reclaimed: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct FtraceStats {
    #[prost(int32, optional, tag = "1")]
    pub(super) phase: Option<i32>,
    #[prost(message, repeated, tag = "2")]
    pub(super) cpu_stats: Vec<FtraceCpuStats>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct FtraceCpuStats {
    #[prost(uint64, optional, tag = "1")]
    pub(super) cpu: Option<u64>,
    #[prost(uint64, optional, tag = "2")]
    pub(super) entries: Option<u64>,
    #[prost(uint64, optional, tag = "3")]
    pub(super) overrun: Option<u64>,
    #[prost(uint64, optional, tag = "4")]
    pub(super) commit_overrun: Option<u64>,
    #[prost(uint64, optional, tag = "8")]
    pub(super) dropped_events: Option<u64>,
    #[prost(uint64, optional, tag = "9")]
    pub(super) read_events: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TrackDescriptor {
    #[prost(uint64, optional, tag = "1")]
    pub(super) uuid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    pub(super) name: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TrackEvent {
    #[prost(int32, optional, tag = "9")]
    pub(super) event_type: Option<i32>,
    #[prost(uint64, optional, tag = "11")]
    pub(super) track_uuid: Option<u64>,
    #[prost(string, optional, tag = "23")]
    pub(super) name: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Print {
    #[prost(uint64, optional, tag = "1")]
    pub(super) ip: Option<u64>,
    #[prost(string, optional, tag = "2")]
    pub(super) buf: Option<String>,
}
