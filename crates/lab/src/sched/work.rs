//! Measures how long kernel work items waited for a worker.

use std::collections::HashMap;

use super::NamePattern;
use crate::trace::{EventKind, Trace};

/// One execution of a work item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkItem {
    /// The worker thread.
    pub tid: i32,
    /// When it was queued, in nanoseconds of the boot clock.
    pub queued_ns: u64,
    /// When a worker started it.
    pub start_ns: u64,
    /// When it finished; `None` if the recording ended before.
    pub end_ns: Option<u64>,
}

/// The work items of queues that match a pattern.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkSchedule {
    /// In the order of their start.
    pub items: Vec<WorkItem>,
    /// Items whose wait spans lost events; they are omitted.
    pub invalid_count: u64,
}

impl WorkItem {
    /// The total time from queued to started, in nanoseconds.
    pub fn latency_ns(&self) -> u64 {
        self.start_ns.saturating_sub(self.queued_ns)
    }
}

impl WorkSchedule {
    /// Matches queueing and start of each work item by its address, because the names of kernel workers do not identify
    /// queues.
    pub fn new(trace: &Trace, workqueue: &NamePattern) -> Self {
        let mut queued: HashMap<u64, u64> = HashMap::new();
        let mut running: HashMap<u64, usize> = HashMap::new();
        let mut schedule = Self::default();
        for event in &trace.events {
            match event.kind {
                EventKind::QueueWork { work, workqueue: name, .. } if workqueue.matches(&name.to_string()) => {
                    queued.insert(work, event.time_ns);
                }
                EventKind::WorkStart { work, .. } => {
                    let Some(queued_ns) = queued.remove(&work) else { continue };
                    let spans_gap = |gap: &crate::trace::Gap| gap.start_ns < event.time_ns && queued_ns < gap.end_ns;
                    if trace.gaps.iter().any(spans_gap) {
                        schedule.invalid_count += 1;
                        continue;
                    }
                    running.insert(work, schedule.items.len());
                    let item = WorkItem { tid: event.tid, queued_ns, start_ns: event.time_ns, end_ns: None };
                    schedule.items.push(item);
                }
                EventKind::WorkEnd { work, .. } => {
                    if let Some(item) = running.remove(&work).and_then(|index| schedule.items.get_mut(index)) {
                        item.end_ns = Some(event.time_ns);
                    }
                }
                _ => {}
            }
        }
        schedule
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Event, Gap, Name};

    fn event(time_ns: u64, kind: EventKind) -> Event {
        Event { time_ns, cpu: 0, tid: 5, kind }
    }

    fn queue(time_ns: u64, work: u64, name: &str) -> Event {
        let workqueue = Name::new(name.as_bytes());
        event(time_ns, EventKind::QueueWork { work, function: 1, workqueue, asked_cpu: 0, cpu: 0 })
    }

    fn start(time_ns: u64, work: u64) -> Event {
        event(time_ns, EventKind::WorkStart { work, function: 1 })
    }

    fn end(time_ns: u64, work: u64) -> Event {
        event(time_ns, EventKind::WorkEnd { work, function: 1 })
    }

    #[test]
    fn items_are_matched_by_address() {
        let events = vec![
            queue(1, 0xa, "erofs_worker"),
            queue(2, 0xb, "events"),
            queue(3, 0xc, "erofs_worker"),
            start(4, 0xb),
            start(5, 0xc),
            start(7, 0xa),
            end(8, 0xc),
            queue(9, 0xc, "erofs_worker"),
            start(10, 0xc),
            start(11, 0xd),
            end(12, 0xb),
        ];
        let trace = Trace { events, ..Trace::default() };
        let schedule = WorkSchedule::new(&trace, &NamePattern::new("erofs_*"));
        let items: Vec<_> =
            schedule.items.iter().map(|item| (item.queued_ns, item.latency_ns(), item.end_ns)).collect();
        assert_eq!(items, [(3, 2, Some(8)), (1, 6, None), (9, 1, None)]);
    }

    #[test]
    fn items_over_lost_events_are_left_out() {
        let events = vec![queue(1, 0xa, "erofs_worker"), start(9, 0xa)];
        let trace = Trace { events, gaps: vec![Gap { cpu: 1, start_ns: 4, end_ns: 5 }], ..Trace::default() };
        let schedule = WorkSchedule::new(&trace, &NamePattern::new("erofs_worker"));
        assert_eq!((schedule.items.len(), schedule.invalid_count), (0, 1));
    }
}
