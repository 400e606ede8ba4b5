//! Decodes records to events.

use std::collections::HashMap;

use super::event::{Event, EventKind, Name, Switch, Wakeup};
use super::format::{EventFormat, Field};
use crate::{Error, Result};

/// The events that the collector enables: tracefs group, name, and whether it is required.
pub(crate) const EVENTS: [(&str, &str, bool); 12] = [
    ("sched", "sched_switch", true),
    ("sched", "sched_waking", true),
    ("sched", "sched_wakeup_new", true),
    ("sched", "sched_process_exec", false),
    ("sched", "sched_process_exit", true),
    ("task", "task_newtask", true),
    ("task", "task_rename", false),
    ("workqueue", "workqueue_queue_work", false),
    ("workqueue", "workqueue_execute_start", false),
    ("workqueue", "workqueue_execute_end", false),
    ("vmscan", "mm_vmscan_direct_reclaim_begin", false),
    ("vmscan", "mm_vmscan_direct_reclaim_end", false),
];

/// The mark of a preempted task if the format does not state it.
const PREEMPTED_FLAG_DEFAULT: i64 = 0x100;

/// Decodes the records of the running kernel.
#[derive(Clone, Debug)]
pub struct Decoder {
    common_type: Field,
    common_pid: Field,
    records: HashMap<u16, Record>,
}

/// The fields of one kind of record.
#[derive(Clone, Debug)]
enum Record {
    Switch {
        previous_tid: Field,
        previous_name: Field,
        previous_priority: Field,
        previous_state: Field,
        next_tid: Field,
        next_name: Field,
        next_priority: Field,
        preempted_flag: i64,
    },
    Waking(WakeupFields),
    WakeupNew(WakeupFields),
    NewTask {
        tid: Field,
        name: Field,
        clone_flags: Field,
    },
    Exec {
        tid: Field,
    },
    Exit {
        tid: Field,
        name: Field,
        priority: Field,
    },
    Rename {
        tid: Field,
        old_name: Field,
        new_name: Field,
    },
    QueueWork {
        work: Field,
        function: Field,
        workqueue: Option<Field>,
        asked_cpu: Field,
        cpu: Field,
    },
    WorkStart {
        work: Field,
        function: Field,
    },
    WorkEnd {
        work: Field,
        function: Field,
    },
    ReclaimBegin {
        order: Field,
    },
    ReclaimEnd {
        reclaimed_pages: Field,
    },
    Print {
        text: Field,
    },
}

#[derive(Clone, Debug)]
struct WakeupFields {
    tid: Field,
    name: Field,
    priority: Field,
    target_cpu: Field,
}

impl Decoder {
    /// Creates a decoder for a kernel with these `formats`; ignores formats of other events.
    pub fn new(formats: &[EventFormat]) -> Result<Self> {
        let first = formats.first().ok_or_else(|| Error::new("no event formats"))?;
        let mut records = HashMap::new();
        for format in formats {
            if let Some(record) = Record::new(format)? {
                records.insert(format.id, record);
            }
        }
        Ok(Self { common_type: field(first, "common_type")?, common_pid: field(first, "common_pid")?, records })
    }

    /// Decodes an event; `None` if it is of another kind.
    pub fn event(&self, time_ns: u64, cpu: u32, bytes: &[u8]) -> Result<Option<Event>> {
        let short = || Error::new(format!("trace record of {} bytes is too short for its kind", bytes.len()));
        let kind = self.common_type.integer(bytes).ok_or_else(short)?;
        let Some(record) = u16::try_from(kind).ok().and_then(|id| self.records.get(&id)) else { return Ok(None) };
        let tid = tid(&self.common_pid, bytes).ok_or_else(short)?;
        if let Record::Print { text } = record {
            // Any process may write marks; foreign ones are ignored.
            let kind = text.text(bytes).and_then(decode_mark);
            return Ok(kind.map(|kind| Event { time_ns, cpu, tid, kind }));
        }
        let kind = record.decode(bytes).ok_or_else(short)?;
        Ok(Some(Event { time_ns, cpu, tid, kind }))
    }
}

impl Record {
    fn new(format: &EventFormat) -> Result<Option<Self>> {
        let field = |name| field(format, name);
        let wakeup = || -> Result<WakeupFields> {
            Ok(WakeupFields {
                tid: field("pid")?,
                name: field("comm")?,
                priority: field("prio")?,
                target_cpu: field("target_cpu")?,
            })
        };
        Ok(Some(match format.name.as_str() {
            "sched_switch" => Self::Switch {
                previous_tid: field("prev_pid")?,
                previous_name: field("prev_comm")?,
                previous_priority: field("prev_prio")?,
                previous_state: field("prev_state")?,
                next_tid: field("next_pid")?,
                next_name: field("next_comm")?,
                next_priority: field("next_prio")?,
                preempted_flag: format.preempted_flag.unwrap_or(PREEMPTED_FLAG_DEFAULT),
            },
            "sched_waking" => Self::Waking(wakeup()?),
            "sched_wakeup_new" => Self::WakeupNew(wakeup()?),
            "task_newtask" => {
                Self::NewTask { tid: field("pid")?, name: field("comm")?, clone_flags: field("clone_flags")? }
            }
            "sched_process_exec" => Self::Exec { tid: field("pid")? },
            "sched_process_exit" => Self::Exit { tid: field("pid")?, name: field("comm")?, priority: field("prio")? },
            "task_rename" => {
                Self::Rename { tid: field("pid")?, old_name: field("oldcomm")?, new_name: field("newcomm")? }
            }
            "workqueue_queue_work" => Self::QueueWork {
                work: field("work")?,
                function: field("function")?,
                // Missing, or only a pointer, before Linux 5.11.
                workqueue: field("workqueue").ok().filter(|name| name.text(&[0; 256]).is_some()),
                asked_cpu: field("req_cpu")?,
                cpu: field("cpu")?,
            },
            "workqueue_execute_start" => Self::WorkStart { work: field("work")?, function: field("function")? },
            // Without the function before Linux 5.6.
            "workqueue_execute_end" => {
                Self::WorkEnd { work: field("work")?, function: field("function").or_else(|_| field("work"))? }
            }
            "mm_vmscan_direct_reclaim_begin" => Self::ReclaimBegin { order: field("order")? },
            "mm_vmscan_direct_reclaim_end" => Self::ReclaimEnd { reclaimed_pages: field("nr_reclaimed")? },
            "print" => Self::Print { text: field("buf")? },
            _ => return Ok(None),
        }))
    }

    fn decode(&self, bytes: &[u8]) -> Option<EventKind> {
        let number = |field: &Field| field.integer(bytes);
        let small = |field: &Field| field.integer(bytes).and_then(|value| i32::try_from(value).ok());
        let address = |field: &Field| field.integer(bytes).map(i64::cast_unsigned);
        let name = |field: &Field| field.text(bytes).map(Name::new);
        let wakeup = |fields: &WakeupFields| {
            Some(Wakeup {
                tid: small(&fields.tid)?,
                name: name(&fields.name)?,
                priority: small(&fields.priority)?,
                target_cpu: small(&fields.target_cpu)?,
            })
        };
        Some(match self {
            Self::Switch {
                previous_tid,
                previous_name,
                previous_priority,
                previous_state,
                next_tid,
                next_name,
                next_priority,
                preempted_flag,
            } => {
                let state = number(previous_state)?;
                EventKind::Switch(Switch {
                    previous_tid: small(previous_tid)?,
                    previous_name: name(previous_name)?,
                    previous_priority: small(previous_priority)?,
                    previous_state: state,
                    previous_is_runnable: state == 0 || state == *preempted_flag,
                    next_tid: small(next_tid)?,
                    next_name: name(next_name)?,
                    next_priority: small(next_priority)?,
                })
            }
            Self::Waking(fields) => EventKind::Waking(wakeup(fields)?),
            Self::WakeupNew(fields) => EventKind::WakeupNew(wakeup(fields)?),
            Self::NewTask { tid, name: name_field, clone_flags } => {
                EventKind::NewTask { tid: small(tid)?, name: name(name_field)?, clone_flags: address(clone_flags)? }
            }
            Self::Exec { tid } => EventKind::Exec { tid: small(tid)? },
            Self::Exit { tid, name: name_field, priority } => {
                EventKind::Exit { tid: small(tid)?, name: name(name_field)?, priority: small(priority)? }
            }
            Self::Rename { tid, old_name, new_name } => {
                EventKind::Rename { tid: small(tid)?, old_name: name(old_name)?, new_name: name(new_name)? }
            }
            Self::QueueWork { work, function, workqueue, asked_cpu, cpu } => EventKind::QueueWork {
                work: address(work)?,
                function: address(function)?,
                workqueue: workqueue.as_ref().and_then(name).unwrap_or_else(|| Name::new(b"")),
                asked_cpu: small(asked_cpu)?,
                cpu: small(cpu)?,
            },
            Self::WorkStart { work, function } => {
                EventKind::WorkStart { work: address(work)?, function: address(function)? }
            }
            Self::WorkEnd { work, function } => {
                EventKind::WorkEnd { work: address(work)?, function: address(function)? }
            }
            Self::ReclaimBegin { order } => EventKind::ReclaimBegin { order: small(order)? },
            Self::ReclaimEnd { reclaimed_pages } => {
                EventKind::ReclaimEnd { reclaimed_pages: address(reclaimed_pages)? }
            }
            Self::Print { .. } => return None,
        })
    }
}

/// Parses `floe_decode NANOSECONDS BYTES`, which Floe writes with the option `decode-marks`.
fn decode_mark(text: &[u8]) -> Option<EventKind> {
    let mut words = std::str::from_utf8(text).ok()?.strip_prefix("floe_decode ")?.split_whitespace();
    let mut number = || words.next()?.parse().ok();
    Some(EventKind::Decode { duration_ns: number()?, byte_count: number()? })
}

fn field(format: &EventFormat, name: &str) -> Result<Field> {
    let field = format.field(name).cloned();
    field.ok_or_else(|| Error::new(format!("the kernel's event {} has no field {name}", format.name)))
}

fn tid(field: &Field, bytes: &[u8]) -> Option<i32> {
    i32::try_from(field.integer(bytes)?).ok()
}
