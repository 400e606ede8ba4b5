//! Exports a recording as a trace for ui.perfetto.dev.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use floe_image::ShownName;
use prost::Message;
use rustix::time::ClockId;

use super::perfetto_schema as schema;
use super::perfetto_schema::{FtraceEvent, TracePacket};
use crate::Result;
use crate::error::ErrorContext;
use crate::trace::{BufferStatistics, Event, EventKind, ProcessTree, Trace, Wakeup};

/// The writer sequence of all packets.
const SEQUENCE: u32 = 1;
/// The UUID of the track that shows launches.
const TRACK: u64 = 0xf10e;
/// `Trace.packet`: field 1, a message.
const PACKET_TAG: u8 = 0x0a;

/// An interval: name, start in nanoseconds of the boot clock, and duration.
pub type NamedInterval = (String, u64, u64);

/// Writes `trace` with a track for the intervals in `intervals`, compressed with gzip.
///
/// `before` and `after` are the processes at its start and end.
pub fn write_perfetto(
    path: &Path,
    trace: &Trace,
    (before, after): (&ProcessTree, &ProcessTree),
    intervals: &[NamedInterval],
) -> Result<()> {
    let context = || format!("cannot write {}", path.shown());
    let file = File::create(path).context(context)?;
    let mut out = GzEncoder::new(BufWriter::new(file), Compression::default());
    for packet in packets(trace, before, after, intervals) {
        let bytes = packet.encode_to_vec();
        let mut head = vec![PACKET_TAG];
        prost::encoding::encode_varint(bytes.len() as u64, &mut head);
        out.write_all(&head).and_then(|()| out.write_all(&bytes)).context(context)?;
    }
    out.finish().and_then(|mut file| file.flush()).context(context)
}

fn packets(trace: &Trace, before: &ProcessTree, after: &ProcessTree, intervals: &[NamedInterval]) -> Vec<TracePacket> {
    let packet = |timestamp: u64| TracePacket {
        timestamp: Some(timestamp),
        timestamp_clock_id: Some(schema::CLOCK_BOOTTIME),
        trusted_packet_sequence_id: Some(SEQUENCE),
        ..TracePacket::default()
    };
    let mut packets = vec![
        TracePacket { clock_snapshot: Some(clocks()), ..packet(trace.start_ns) },
        TracePacket { system_info: Some(system()), ..packet(trace.start_ns) },
        TracePacket { process_tree: Some(processes(before, trace.start_ns)), ..packet(trace.start_ns) },
        TracePacket { ftrace_stats: Some(statistics(trace, schema::START_OF_TRACE)), ..packet(trace.start_ns) },
        TracePacket {
            track_descriptor: Some(schema::TrackDescriptor { uuid: Some(TRACK), name: Some("floe lab".to_owned()) }),
            ..packet(trace.start_ns)
        },
    ];
    for (name, start_ns, duration_ns) in intervals {
        let event =
            |event_type, name| schema::TrackEvent { event_type: Some(event_type), track_uuid: Some(TRACK), name };
        let begin = event(schema::SLICE_BEGIN, Some(name.clone()));
        packets.push(TracePacket { track_event: Some(begin), ..packet(*start_ns) });
        let end = event(schema::SLICE_END, None);
        packets.push(TracePacket { track_event: Some(end), ..packet(start_ns + duration_ns) });
    }
    // Bundles have no timestamp of their own; their events do.
    let process_of = |tid: i32| after.threads.get(&tid).or_else(|| before.threads.get(&tid)).map_or(tid, |t| t.pid);
    packets.extend(bundles(trace, process_of).into_iter().map(|bundle| TracePacket {
        trusted_packet_sequence_id: Some(SEQUENCE),
        ftrace_events: Some(bundle),
        ..TracePacket::default()
    }));
    packets.push(TracePacket { ftrace_stats: Some(statistics(trace, schema::END_OF_TRACE)), ..packet(trace.end_ns) });
    packets.push(TracePacket { process_tree: Some(processes(after, trace.end_ns)), ..packet(trace.end_ns) });
    packets
}

/// One bundle per CPU, and a new one after each gap, which marks lost events before it.
fn bundles(trace: &Trace, process_of: impl Fn(i32) -> i32) -> Vec<schema::FtraceEventBundle> {
    let mut of_cpu: BTreeMap<u32, Vec<schema::FtraceEventBundle>> = BTreeMap::new();
    for event in &trace.events {
        let bundles = of_cpu.entry(event.cpu).or_default();
        let gap_count = trace.gaps.iter().filter(|gap| gap.cpu == event.cpu && gap.end_ns <= event.time_ns).count();
        while bundles.len() <= gap_count {
            let lost_events = (!bundles.is_empty()).then_some(true);
            bundles.push(schema::FtraceEventBundle { cpu: Some(event.cpu), event: Vec::new(), lost_events });
        }
        if let Some(bundle) = bundles.last_mut() {
            match event.kind {
                EventKind::Decode { duration_ns, byte_count } => {
                    bundle.event.extend(decode_slice(event, process_of(event.tid), duration_ns, byte_count));
                }
                _ => bundle.event.extend(ftrace_event(event)),
            }
        }
    }
    of_cpu.into_values().flatten().filter(|bundle| !bundle.event.is_empty()).collect()
}

/// A slice on the thread's own track, in the format of atrace markers.
fn decode_slice(event: &Event, pid: i32, duration_ns: u64, byte_count: u64) -> [FtraceEvent; 2] {
    let print = |time_ns: u64, text: String| FtraceEvent {
        timestamp: Some(time_ns),
        pid: Some(event.tid.cast_unsigned()),
        print: Some(schema::Print { ip: Some(0), buf: Some(text) }),
        ..FtraceEvent::default()
    };
    // The mark is written at the end of the decode.
    let begin = format!("B|{pid}|decode {} KiB\n", byte_count.div_ceil(1024));
    [print(event.time_ns.saturating_sub(duration_ns), begin), print(event.time_ns, format!("E|{pid}\n"))]
}

fn ftrace_event(event: &Event) -> Option<FtraceEvent> {
    let mut packet =
        FtraceEvent { timestamp: Some(event.time_ns), pid: Some(event.tid.cast_unsigned()), ..FtraceEvent::default() };
    match event.kind {
        EventKind::Switch(switch) => {
            packet.sched_switch = Some(schema::SchedSwitch {
                prev_comm: Some(switch.previous_name.to_string()),
                prev_pid: Some(switch.previous_tid),
                prev_prio: Some(switch.previous_priority),
                prev_state: Some(switch.previous_state),
                next_comm: Some(switch.next_name.to_string()),
                next_pid: Some(switch.next_tid),
                next_prio: Some(switch.next_priority),
            });
        }
        EventKind::Waking(wakeup) => packet.sched_waking = Some(waking(&wakeup)),
        EventKind::WakeupNew(wakeup) => packet.sched_wakeup_new = Some(waking(&wakeup)),
        EventKind::NewTask { tid, name, clone_flags } => {
            packet.task_newtask = Some(schema::TaskNewtask {
                pid: Some(tid),
                comm: Some(name.to_string()),
                clone_flags: Some(clone_flags),
                oom_score_adj: Some(0),
            });
        }
        EventKind::Rename { tid, old_name, new_name } => {
            packet.task_rename = Some(schema::TaskRename {
                pid: Some(tid),
                oldcomm: Some(old_name.to_string()),
                newcomm: Some(new_name.to_string()),
                oom_score_adj: Some(0),
            });
        }
        EventKind::Exit { tid, name, priority } => {
            packet.sched_process_exit =
                Some(schema::SchedProcessExit { comm: Some(name.to_string()), pid: Some(tid), prio: Some(priority) });
        }
        EventKind::QueueWork { work, function, workqueue, asked_cpu, cpu } => {
            packet.workqueue_queue_work = Some(schema::WorkqueueQueueWork {
                work: Some(work),
                function: Some(function),
                req_cpu: Some(asked_cpu),
                cpu: Some(cpu),
                workqueue: Some(workqueue.to_string()),
            });
        }
        EventKind::WorkStart { work, function } => {
            packet.workqueue_execute_start =
                Some(schema::WorkqueueExecute { work: Some(work), function: Some(function) });
        }
        EventKind::WorkEnd { work, function } => {
            packet.workqueue_execute_end =
                Some(schema::WorkqueueExecute { work: Some(work), function: Some(function) });
        }
        EventKind::ReclaimBegin { order } => {
            packet.mm_vmscan_direct_reclaim_begin = Some(schema::ReclaimBegin { order: Some(order) });
        }
        EventKind::ReclaimEnd { reclaimed_pages } => {
            packet.mm_vmscan_direct_reclaim_end = Some(schema::ReclaimEnd { nr_reclaimed: Some(reclaimed_pages) });
        }
        // The rename that accompanies an exec is more informative; decodes have a track of their own.
        EventKind::Exec { .. } | EventKind::Decode { .. } => return None,
    }
    Some(packet)
}

fn waking(wakeup: &Wakeup) -> schema::SchedWaking {
    schema::SchedWaking {
        comm: Some(wakeup.name.to_string()),
        pid: Some(wakeup.tid),
        prio: Some(wakeup.priority),
        success: Some(1),
        target_cpu: Some(wakeup.target_cpu),
    }
}

fn clocks() -> schema::ClockSnapshot {
    let clock = |clock_id, id| {
        let now = rustix::time::clock_gettime(id);
        let timestamp = now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned();
        schema::Clock { clock_id: Some(clock_id), timestamp: Some(timestamp) }
    };
    schema::ClockSnapshot {
        clocks: vec![
            clock(schema::CLOCK_BOOTTIME, ClockId::Boottime),
            clock(schema::CLOCK_MONOTONIC, ClockId::Monotonic),
            clock(schema::CLOCK_REALTIME, ClockId::Realtime),
        ],
        primary_trace_clock: i32::try_from(schema::CLOCK_BOOTTIME).ok(),
    }
}

/// Perfetto needs the kernel release to decode task states.
fn system() -> schema::SystemInfo {
    let system = rustix::system::uname();
    let text = |part: &std::ffi::CStr| Some(part.to_string_lossy().into_owned());
    schema::SystemInfo {
        utsname: Some(schema::Utsname {
            sysname: text(system.sysname()),
            version: text(system.version()),
            release: text(system.release()),
            machine: text(system.machine()),
        }),
        page_size: u32::try_from(rustix::param::page_size()).ok(),
        num_cpus: std::thread::available_parallelism().ok().and_then(|count| u32::try_from(count.get()).ok()),
    }
}

fn processes(tree: &ProcessTree, time_ns: u64) -> schema::ProcessTreePacket {
    let process = |(&pid, process): (&i32, &crate::trace::Process)| schema::ProcessPacket {
        pid: Some(pid),
        ppid: Some(process.parent_pid),
        cmdline: process.command_line.clone(),
        uid: Some(process.uid.cast_signed()),
    };
    let thread = |(&tid, thread): (&i32, &crate::trace::Thread)| schema::ThreadPacket {
        tid: Some(tid),
        name: Some(thread.name.clone()),
        tgid: Some(thread.pid),
    };
    // The main thread is part of the process.
    let is_other = |(tid, thread): &(&i32, &crate::trace::Thread)| **tid != thread.pid;
    schema::ProcessTreePacket {
        processes: tree.processes.iter().map(process).collect(),
        threads: tree.threads.iter().filter(is_other).map(thread).collect(),
        collection_end_timestamp: Some(time_ns),
    }
}

fn statistics(trace: &Trace, phase: i32) -> schema::FtraceStats {
    let is_end = phase == schema::END_OF_TRACE;
    let of_cpu = |buffer: &BufferStatistics| {
        let count = |number: u64| Some(if is_end { number } else { 0 });
        schema::FtraceCpuStats {
            cpu: Some(u64::from(buffer.cpu)),
            entries: count(buffer.entries),
            overrun: count(buffer.overrun),
            commit_overrun: count(buffer.commit_overrun),
            dropped_events: count(buffer.dropped),
            read_events: count(buffer.read),
        }
    };
    schema::FtraceStats { phase: Some(phase), cpu_stats: trace.buffers.iter().map(of_cpu).collect() }
}
