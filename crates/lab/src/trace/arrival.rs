//! Thread arrivals on CPUs from perf events, which restore switches missing from tracefs.
//!
//! On some virtual machines, tracing misses switches away from a CPU's idle task, sometimes or always. perf events
//! record the arriving thread separately and serve as a second source.

use std::collections::HashMap;

use super::event::{Event, EventKind, Name, Switch};

/// Record types of `linux/perf_event.h`: lost records, and a switch on a CPU.
const RECORD_LOST: u32 = 2;
const RECORD_SWITCH: u32 = 15;
/// Set if the thread leaves the CPU; otherwise it arrives.
const MISC_OUT: u16 = 1 << 13;
/// A record: header, the other thread, this thread, the time.
const HEADER_BYTES: usize = 8;
const SWITCH_BYTES: usize = HEADER_BYTES + 8 + 8 + 8;
/// The assumed state of a thread that is woken next: sleeping.
const STATE_SLEEPING: i64 = 1;
/// A state that is not known yet.
const STATE_UNKNOWN: i64 = i64::MIN;
/// The assumed priority of a thread that no switch shows: normal.
const PRIORITY_UNKNOWN: i32 = 120;

/// The arrival of a thread on a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    pub(crate) time_ns: u64,
    pub(crate) tid: i32,
    /// The thread that the CPU ran before.
    pub(crate) previous_tid: i32,
}

/// Parses the arrivals in complete perf records; returns how many records were lost.
pub(crate) fn arrivals(mut bytes: &[u8], found: &mut Vec<Arrival>) -> u64 {
    let mut lost = 0;
    while let Some(header) = bytes.get(..HEADER_BYTES) {
        let kind = word(header, 0);
        let misc = u16::from_ne_bytes([header[4], header[5]]);
        let size = usize::from(u16::from_ne_bytes([header[6], header[7]]));
        let Some(record) = bytes.get(..size).filter(|_| size >= HEADER_BYTES) else { break };
        match kind {
            RECORD_SWITCH if size >= SWITCH_BYTES && misc & MISC_OUT == 0 => found.push(Arrival {
                time_ns: double_word(record, 24),
                tid: word(record, 20).cast_signed(),
                previous_tid: word(record, 12).cast_signed(),
            }),
            RECORD_LOST if size >= HEADER_BYTES + 16 => lost += double_word(record, 16),
            _ => {}
        }
        bytes = &bytes[size..];
    }
    lost
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|word| word.try_into().ok()).map_or(0, u32::from_ne_bytes)
}

fn double_word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|word| word.try_into().ok()).map_or(0, u64::from_ne_bytes)
}

/// Inserts the switches of one CPU that are missing from its `events`.
///
/// Each switch must leave the thread that the previous switch entered. If it does not, the arrivals between the two are
/// inserted, provided that they lead from the one thread to the other; otherwise the chain stays broken. Returns the
/// number of inserted switches.
pub(crate) fn close_chain(events: &mut Vec<Event>, arrivals: &[Arrival]) -> u64 {
    if arrivals.is_empty() {
        return 0;
    }
    let mut names = HashMap::new();
    for event in events.iter() {
        if let EventKind::Switch(switch) = event.kind {
            names.insert(switch.previous_tid, (switch.previous_name, switch.previous_priority));
            names.insert(switch.next_tid, (switch.next_name, switch.next_priority));
        }
    }
    let mut whole = Vec::with_capacity(events.len() + events.len() / 8);
    let mut next = 0;
    let mut running: Option<(i32, u64)> = None;
    let mut added_count = 0;
    let mut after_last_switch = 0;
    for event in events.iter() {
        if let EventKind::Switch(switch) = event.kind {
            if let Some((tid, since_ns)) = running.filter(|(tid, _)| *tid != switch.previous_tid) {
                next += arrivals[next..].iter().take_while(|arrival| arrival.time_ns < since_ns).count();
                let between = arrivals[next..].iter().take_while(|arrival| arrival.time_ns <= event.time_ns).count();
                let steps = steps((tid, switch.previous_tid), &arrivals[next..next + between]);
                added_count += steps.len() as u64;
                whole.extend(steps.iter().map(|step| missing_switch(step, event.cpu, &names)));
                // Other events of this CPU may lie in between; keep them in time order.
                whole[after_last_switch..].sort_by_key(|event: &Event| event.time_ns);
            }
            running = Some((switch.next_tid, event.time_ns));
            after_last_switch = whole.len() + 1;
        }
        whole.push(*event);
    }
    *events = whole;
    added_count
}

/// The arrivals that lead from one thread to another; empty if they do not.
fn steps((from, to): (i32, i32), between: &[Arrival]) -> Vec<Arrival> {
    let mut at = from;
    let mut steps = Vec::new();
    // An arrival of the current thread belongs to a switch that tracing recorded a moment earlier.
    for arrival in between {
        if arrival.tid == at {
            continue;
        }
        if arrival.previous_tid != at {
            return Vec::new();
        }
        at = arrival.tid;
        steps.push(*arrival);
    }
    if at == to { steps } else { Vec::new() }
}

fn missing_switch(step: &Arrival, cpu: u32, names: &HashMap<i32, (Name, i32)>) -> Event {
    let known = |tid: i32| names.get(&tid).copied().unwrap_or((Name::new(b""), PRIORITY_UNKNOWN));
    let ((previous_name, previous_priority), (next_name, next_priority)) = (known(step.previous_tid), known(step.tid));
    let switch = Switch {
        previous_tid: step.previous_tid,
        previous_name,
        previous_priority,
        previous_state: STATE_UNKNOWN,
        previous_is_runnable: false,
        next_tid: step.tid,
        next_name,
        next_priority,
    };
    // The arriving thread is running when the record is written.
    Event { time_ns: step.time_ns, cpu, tid: step.previous_tid, kind: EventKind::Switch(switch) }
}

/// Derives the states in which threads left in inserted switches from later `events` of all CPUs, in order: a thread
/// that is woken next was sleeping; one that runs again without a wakeup was runnable.
pub(crate) fn resolve_states(events: &mut [Event]) {
    let mut is_woken_next: HashMap<i32, bool> = HashMap::new();
    for event in events.iter_mut().rev() {
        match &mut event.kind {
            EventKind::Switch(switch) => {
                if switch.previous_state == STATE_UNKNOWN {
                    let is_idle = switch.previous_tid == 0;
                    let is_runnable = is_idle || is_woken_next.get(&switch.previous_tid) == Some(&false);
                    switch.previous_is_runnable = is_runnable;
                    switch.previous_state = if is_runnable { 0 } else { STATE_SLEEPING };
                }
                is_woken_next.insert(switch.next_tid, false);
            }
            EventKind::Waking(wakeup) => {
                is_woken_next.insert(wakeup.tid, true);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Wakeup;

    fn name(tid: i32) -> Name {
        Name::new(format!("thread {tid}").as_bytes())
    }

    fn switch(time_ns: u64, previous_tid: i32, next_tid: i32) -> Event {
        let switch = Switch {
            previous_tid,
            previous_name: name(previous_tid),
            previous_priority: 120,
            previous_state: 1,
            previous_is_runnable: false,
            next_tid,
            next_name: name(next_tid),
            next_priority: 120,
        };
        Event { time_ns, cpu: 1, tid: previous_tid, kind: EventKind::Switch(switch) }
    }

    fn waking(time_ns: u64, tid: i32) -> Event {
        let wakeup = Wakeup { tid, name: name(tid), priority: 120, target_cpu: 1 };
        Event { time_ns, cpu: 1, tid: 0, kind: EventKind::Waking(wakeup) }
    }

    fn arrival(time_ns: u64, previous_tid: i32, tid: i32) -> Arrival {
        Arrival { time_ns, tid, previous_tid }
    }

    fn record(kind: u32, misc: u16, words: &[u64]) -> Vec<u8> {
        let size = u16::try_from(8 + 8 * words.len()).unwrap();
        let mut bytes =
            [kind.to_ne_bytes().to_vec(), misc.to_ne_bytes().to_vec(), size.to_ne_bytes().to_vec()].concat();
        bytes.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        bytes
    }

    fn pair(low: u32, high: u32) -> u64 {
        u64::from(low) | u64::from(high) << 32
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn records_are_read() {
        let bytes = [
            record(RECORD_SWITCH, 0, &[pair(5, 6), pair(7, 8), 1000]),
            record(RECORD_SWITCH, MISC_OUT, &[pair(7, 8), pair(5, 6), 2000]),
            record(RECORD_LOST, 0, &[1, 33, pair(1, 1), 2500]),
            record(99, 0, &[]),
            record(RECORD_SWITCH, 0, &[pair(0, 0), pair(7, 9), 3000]),
        ]
        .concat();
        for (length, expected) in [(bytes.len(), 2), (bytes.len() - 1, 1)] {
            let mut found = Vec::new();
            assert_eq!(arrivals(&bytes[..length], &mut found), 33);
            assert_eq!(found, [arrival(1000, 6, 8), arrival(3000, 0, 9)][..expected]);
        }
        let mut found = Vec::new();
        assert_eq!(arrivals(&[0; 64], &mut found), 0, "a record of no length does not end");
        assert!(found.is_empty());
    }

    #[test]
    fn chains_are_closed_if_the_arrivals_connect_their_ends() {
        type Row = (&'static str, Vec<Event>, Vec<Arrival>, &'static [(u64, i32, i32)]);
        let rows: Vec<Row> = vec![
            (
                "nothing is missing",
                vec![switch(1, 0, 7), switch(5, 7, 0), switch(9, 0, 7)],
                vec![arrival(2, 0, 7), arrival(6, 7, 0), arrival(10, 0, 7)],
                &[(1, 0, 7), (5, 7, 0), (9, 0, 7)],
            ),
            (
                "from the idle task",
                vec![switch(1, 7, 0), waking(4, 7), switch(9, 7, 0)],
                vec![arrival(2, 7, 0), arrival(5, 0, 7)],
                &[(1, 7, 0), (5, 0, 7), (9, 7, 0)],
            ),
            (
                "twice in a row",
                vec![switch(1, 7, 0), switch(20, 9, 0)],
                vec![arrival(5, 0, 8), arrival(6, 8, 9)],
                &[(1, 7, 0), (5, 0, 8), (6, 8, 9), (20, 9, 0)],
            ),
            (
                "away and back again",
                vec![switch(1, 7, 8), switch(20, 9, 0)],
                vec![arrival(2, 7, 8), arrival(5, 8, 9), arrival(6, 9, 8), arrival(7, 8, 9)],
                &[(1, 7, 8), (5, 8, 9), (6, 9, 8), (7, 8, 9), (20, 9, 0)],
            ),
            (
                "an arrival is missing too",
                vec![switch(1, 7, 0), switch(20, 9, 0)],
                vec![arrival(6, 8, 9)],
                &[(1, 7, 0), (20, 9, 0)],
            ),
            (
                "they lead elsewhere",
                vec![switch(1, 7, 0), switch(20, 9, 0)],
                vec![arrival(6, 0, 8)],
                &[(1, 7, 0), (20, 9, 0)],
            ),
        ];
        for (what, mut events, arrivals, expected) in rows {
            let before = events.len();
            let added = close_chain(&mut events, &arrivals);
            assert_eq!(added, (events.len() - before) as u64, "{what}");
            assert!(events.is_sorted_by_key(|event| event.time_ns), "{what}");
            let found: Vec<_> = events
                .iter()
                .filter_map(|event| match event.kind {
                    EventKind::Switch(switch) => Some((event.time_ns, switch.previous_tid, switch.next_tid)),
                    _ => None,
                })
                .collect();
            assert_eq!(found, expected, "{what}");
        }
    }

    #[test]
    fn the_state_of_a_leaving_thread_follows_from_later_events() {
        let rows = [
            (vec![waking(30, 7), switch(31, 0, 7)], false),
            (vec![switch(31, 0, 7), waking(32, 7)], true),
            (vec![], false),
        ];
        for (after, expected) in rows {
            let mut events = vec![switch(1, 0, 7), switch(20, 9, 0)];
            assert_eq!(close_chain(&mut events, &[arrival(5, 7, 9)]), 1);
            events.extend(after);
            resolve_states(&mut events);
            let EventKind::Switch(added) = events[1].kind else { panic!("{events:?}") };
            assert_eq!((added.previous_is_runnable, added.previous_state == 0), (expected, expected), "{events:?}");
            assert_eq!(added.next_name, name(9));
        }
    }
}
