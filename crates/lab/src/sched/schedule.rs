//! Reconstructs when threads ran, slept, and waited for a CPU.

use std::collections::{BTreeMap, HashMap};

use super::NamePattern;
use crate::trace::{Event, EventKind, Gap, Name, Switch, Trace};

/// clone(2) flag: a thread of the same process.
const CLONE_THREAD: u64 = 0x0001_0000;
/// The final states of a task: dead, zombie.
const ENDED_STATES: i64 = 0x30;

/// Why a thread waited for a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum WaitKind {
    /// It was woken, or is new.
    Wake,
    /// It was preempted by another thread.
    Preempt,
}

/// A time in which a thread was runnable but not running: its scheduling latency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The reason.
    pub kind: WaitKind,
    /// When it became runnable, in nanoseconds of the boot clock.
    pub start_ns: u64,
    /// When it started to run.
    pub end_ns: u64,
}

/// A time slice of a thread on one CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The CPU.
    pub cpu: u32,
    /// The thread.
    pub tid: i32,
    /// The start.
    pub start_ns: u64,
    /// The end.
    pub end_ns: u64,
}

/// The schedule of one thread.
#[derive(Clone, Debug, Default)]
pub struct ThreadSchedule {
    /// Its latest name.
    pub name: String,
    /// The thread that created it, if known.
    pub parent_tid: Option<i32>,
    /// Whether it belongs to the process of its creator.
    pub is_thread_of_parent: bool,
    /// Its waits for a CPU.
    pub waits: Vec<Wait>,
    /// Running time in nanoseconds.
    pub running_ns: u64,
    /// How often it was scheduled.
    pub slice_count: u64,
    /// How often it went to sleep.
    pub sleep_count: u64,
    /// Total sleep time until its wakeups, in nanoseconds.
    pub sleep_ns: u64,
    /// Waits that span lost events; excluded from all other numbers.
    pub invalid_count: u64,
    /// Waits that had not ended when the recording ended.
    pub open_count: u64,
}

/// The schedule of all threads in one recording.
#[derive(Clone, Debug, Default)]
pub struct Schedule {
    /// By thread ID, without the idle task.
    pub threads: BTreeMap<i32, ThreadSchedule>,
    /// Time slices with known start and end, in order of their end.
    pub slices: Vec<Slice>,
    /// Waits that span lost events, or end with one.
    pub invalid_count: u64,
    /// Switches that are missing: see [`Trace::unexplained_switch_count`].
    pub unexplained_count: u64,
    /// Switches restored from perf events: see [`Trace::restored_switch_count`].
    pub restored_count: u64,
}

impl ThreadSchedule {
    /// The sum of its waits of one kind, or of both, in nanoseconds.
    pub fn latency_ns(&self, kind: Option<WaitKind>) -> u64 {
        self.waits.iter().filter(|wait| kind.is_none_or(|kind| wait.kind == kind)).map(Wait::duration_ns).sum()
    }
}

impl Wait {
    /// The duration in nanoseconds.
    pub fn duration_ns(&self) -> u64 {
        self.end_ns.saturating_sub(self.start_ns)
    }
}

impl Schedule {
    /// Computes the schedule of `trace`.
    pub fn new(trace: &Trace) -> Self {
        let mut builder = Builder {
            gaps: &trace.gaps,
            next_gap: 0,
            states: HashMap::new(),
            running: HashMap::new(),
            schedule: Self { restored_count: trace.restored_switch_count, ..Self::default() },
        };
        for event in &trace.events {
            builder.event(event);
        }
        builder.finish()
    }

    /// The threads whose names match a pattern.
    pub fn named<'a>(&'a self, pattern: &'a NamePattern) -> impl Iterator<Item = (i32, &'a ThreadSchedule)> {
        self.threads.iter().filter(|(_, thread)| pattern.matches(&thread.name)).map(|(&tid, thread)| (tid, thread))
    }

    /// A thread and its descendants.
    pub(crate) fn descendants(&self, tid: i32) -> Vec<i32> {
        let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
        for (&child, thread) in &self.threads {
            if let Some(parent) = thread.parent_tid {
                children.entry(parent).or_default().push(child);
            }
        }
        let mut family = vec![tid];
        let mut index = 0;
        while let Some(&parent) = family.get(index) {
            family.extend(children.remove(&parent).unwrap_or_default());
            index += 1;
        }
        family
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Unknown,
    Running { since_ns: u64, cpu: u32 },
    Sleeping { since_ns: u64 },
    Waiting { kind: WaitKind, since_ns: u64 },
}

struct Builder<'trace> {
    gaps: &'trace [Gap],
    next_gap: usize,
    states: HashMap<i32, State>,
    /// The current thread of each CPU.
    running: HashMap<u32, i32>,
    schedule: Schedule,
}

impl Builder<'_> {
    fn event(&mut self, event: &Event) {
        self.pass_gaps(event.time_ns);
        let time_ns = event.time_ns;
        match event.kind {
            EventKind::Switch(switch) => self.switch(time_ns, event.cpu, &switch),
            EventKind::Waking(wakeup) => {
                self.name(wakeup.tid, &wakeup.name);
                self.waking(time_ns, wakeup.tid);
            }
            EventKind::WakeupNew(wakeup) => {
                self.name(wakeup.tid, &wakeup.name);
                self.states.insert(wakeup.tid, State::Waiting { kind: WaitKind::Wake, since_ns: time_ns });
            }
            EventKind::NewTask { tid, name, clone_flags } => {
                let thread = self.name(tid, &name);
                thread.parent_tid = Some(event.tid);
                thread.is_thread_of_parent = clone_flags & CLONE_THREAD != 0;
            }
            EventKind::Rename { tid, new_name, .. } => {
                self.name(tid, &new_name);
            }
            _ => {}
        }
    }

    /// Discards the state of threads when events of any CPU were lost.
    fn pass_gaps(&mut self, time_ns: u64) {
        while self.gaps.get(self.next_gap).is_some_and(|gap| gap.end_ns <= time_ns) {
            self.next_gap += 1;
            self.running.clear();
            for (tid, state) in self.states.drain() {
                if let State::Waiting { .. } = state {
                    self.schedule.invalid_count += 1;
                    self.schedule.threads.entry(tid).or_default().invalid_count += 1;
                }
            }
        }
    }

    fn switch(&mut self, time_ns: u64, cpu: u32, switch: &Switch) {
        let taken_up = self.running.insert(cpu, switch.next_tid);
        if let Some(tid) = taken_up.filter(|&tid| tid != switch.previous_tid) {
            self.miss(tid, switch.previous_tid);
        }
        if switch.previous_tid != 0 {
            self.leave(time_ns, switch);
        }
        if switch.next_tid != 0 {
            self.enter(time_ns, cpu, switch.next_tid, &switch.next_name);
        }
    }

    /// Handles a switch of threads on a CPU that has no event, so its time is unknown.
    fn miss(&mut self, left_tid: i32, taken_up_tid: i32) {
        self.schedule.unexplained_count += 1;
        if let State::Running { .. } = self.state(left_tid) {
            self.states.remove(&left_tid);
        }
        if let Some(State::Waiting { .. }) = self.states.remove(&taken_up_tid) {
            self.schedule.invalid_count += 1;
            self.schedule.threads.entry(taken_up_tid).or_default().invalid_count += 1;
        }
    }

    fn leave(&mut self, time_ns: u64, switch: &Switch) {
        let tid = switch.previous_tid;
        match self.state(tid) {
            State::Running { since_ns, cpu } => {
                self.schedule.slices.push(Slice { cpu, tid, start_ns: since_ns, end_ns: time_ns });
                let thread = self.name(tid, &switch.previous_name);
                thread.running_ns += time_ns.saturating_sub(since_ns);
                thread.slice_count += 1;
            }
            _ => {
                self.name(tid, &switch.previous_name);
            }
        }
        let state = if switch.previous_is_runnable {
            State::Waiting { kind: WaitKind::Preempt, since_ns: time_ns }
        } else if switch.previous_state & ENDED_STATES != 0 {
            State::Unknown
        } else {
            self.schedule.threads.entry(tid).or_default().sleep_count += 1;
            State::Sleeping { since_ns: time_ns }
        };
        self.states.insert(tid, state);
    }

    fn enter(&mut self, time_ns: u64, cpu: u32, tid: i32, name: &Name) {
        let wait = match self.state(tid) {
            State::Waiting { kind, since_ns } => Some(Wait { kind, start_ns: since_ns, end_ns: time_ns }),
            // The thread was woken after it had decided to sleep and before it left the CPU. No event shows how long it
            // was runnable; perf and Perfetto count no wait either.
            State::Sleeping { since_ns } => {
                self.schedule.threads.entry(tid).or_default().sleep_ns += time_ns.saturating_sub(since_ns);
                None
            }
            _ => None,
        };
        let is_invalid = wait.is_some_and(|wait| self.spans_gap(&wait));
        self.schedule.invalid_count += u64::from(is_invalid);
        let thread = self.name(tid, name);
        if is_invalid {
            thread.invalid_count += 1;
        } else {
            thread.waits.extend(wait);
        }
        self.states.insert(tid, State::Running { since_ns: time_ns, cpu });
    }

    fn waking(&mut self, time_ns: u64, tid: i32) {
        let state = match self.state(tid) {
            State::Unknown => State::Waiting { kind: WaitKind::Wake, since_ns: time_ns },
            State::Sleeping { since_ns } => {
                self.schedule.threads.entry(tid).or_default().sleep_ns += time_ns.saturating_sub(since_ns);
                State::Waiting { kind: WaitKind::Wake, since_ns: time_ns }
            }
            // A waiting thread cannot be woken again, so it ran and slept in between, and those events are missing.
            State::Waiting { kind: WaitKind::Wake, .. } if self.schedule.unexplained_count > 0 => {
                self.schedule.invalid_count += 1;
                self.schedule.threads.entry(tid).or_default().invalid_count += 1;
                State::Waiting { kind: WaitKind::Wake, since_ns: time_ns }
            }
            // The first wakeup counts; a wakeup of a running thread has no effect.
            unchanged @ (State::Waiting { .. } | State::Running { .. }) => unchanged,
        };
        self.states.insert(tid, state);
    }

    fn spans_gap(&self, wait: &Wait) -> bool {
        // Gaps that ended before the wait began were handled earlier, and the state was discarded.
        self.gaps[self.next_gap..].iter().any(|gap| gap.start_ns < wait.end_ns && wait.start_ns < gap.end_ns)
    }

    fn state(&self, tid: i32) -> State {
        self.states.get(&tid).copied().unwrap_or(State::Unknown)
    }

    fn name(&mut self, tid: i32, name: &Name) -> &mut ThreadSchedule {
        let thread = self.schedule.threads.entry(tid).or_default();
        if thread.name.as_bytes() != name.as_bytes() {
            thread.name = name.to_string();
        }
        thread
    }

    fn finish(mut self) -> Schedule {
        for (tid, state) in self.states {
            if let State::Waiting { .. } = state {
                self.schedule.threads.entry(tid).or_default().open_count += 1;
            }
        }
        self.schedule
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Wakeup;

    const SLEEPS: i64 = 1;
    const PREEMPTED: i64 = 0x100;

    fn event(time_ns: u64, cpu: u32, kind: EventKind) -> Event {
        Event { time_ns, cpu, tid: 0, kind }
    }

    fn name(tid: i32) -> Name {
        Name::new(format!("thread {tid}").as_bytes())
    }

    fn switch(time_ns: u64, cpu: u32, previous: (i32, i64), next_tid: i32) -> Event {
        let (previous_tid, previous_state) = previous;
        let kind = EventKind::Switch(Switch {
            previous_tid,
            previous_name: name(previous_tid),
            previous_priority: 120,
            previous_state,
            previous_is_runnable: previous_state == 0 || previous_state == PREEMPTED,
            next_tid,
            next_name: name(next_tid),
            next_priority: 120,
        });
        event(time_ns, cpu, kind)
    }

    fn waking(time_ns: u64, tid: i32) -> Event {
        event(time_ns, 1, EventKind::Waking(Wakeup { tid, name: name(tid), priority: 120, target_cpu: 0 }))
    }

    fn schedule(events: &[Event], gaps: &[Gap]) -> Schedule {
        Schedule::new(&Trace { events: events.to_vec(), gaps: gaps.to_vec(), ..Trace::default() })
    }

    #[test]
    fn waits_are_found() {
        use WaitKind::{Preempt, Wake};
        type Row = (&'static str, Vec<Event>, &'static [(WaitKind, u64, u64)]);
        let rows: Vec<Row> = vec![
            ("woken", vec![waking(10, 7), switch(15, 0, (0, 0), 7)], &[(Wake, 10, 15)]),
            ("the first waking wins", vec![waking(10, 7), waking(12, 7), switch(15, 0, (0, 0), 7)], &[(Wake, 10, 15)]),
            (
                "preempted, by the state or by its mark",
                vec![
                    switch(1, 0, (0, 0), 7),
                    switch(4, 0, (7, 0), 8),
                    switch(6, 0, (8, SLEEPS), 7),
                    switch(8, 0, (7, PREEMPTED), 8),
                    switch(11, 1, (0, 0), 7),
                ],
                &[(Preempt, 4, 6), (Preempt, 8, 11)],
            ),
            (
                "a waking before it sleeps is cleared when it leaves the CPU",
                vec![switch(1, 0, (0, 0), 7), waking(4, 7), switch(5, 0, (7, SLEEPS), 0), switch(9, 0, (0, 0), 7)],
                &[],
            ),
            (
                "a waking while it runs is forgotten when it is woken from its sleep",
                vec![
                    switch(1, 0, (0, 0), 7),
                    waking(2, 7),
                    switch(5, 0, (7, SLEEPS), 0),
                    waking(20, 7),
                    switch(22, 0, (0, 0), 7),
                ],
                &[(Wake, 20, 22)],
            ),
            ("a switch to a thread of which nothing is known", vec![switch(5, 0, (0, 0), 7)], &[]),
        ];
        for (what, events, expected) in rows {
            let schedule = schedule(&events, &[]);
            let waits = &schedule.threads[&7].waits;
            let waits: Vec<_> = waits.iter().map(|wait| (wait.kind, wait.start_ns, wait.end_ns)).collect();
            assert_eq!(waits, expected, "{what}");
        }
    }

    #[test]
    fn sleeps_and_running_time_are_counted() {
        let events = [
            switch(10, 0, (0, 0), 7),
            switch(15, 0, (7, SLEEPS), 0),
            waking(40, 7),
            switch(42, 0, (0, 0), 7),
            switch(50, 0, (7, 0x20), 0),
        ];
        let schedule = schedule(&events, &[]);
        let thread = &schedule.threads[&7];
        assert_eq!((thread.running_ns, thread.slice_count), (13, 2));
        assert_eq!((thread.sleep_count, thread.sleep_ns), (1, 25));
        assert_eq!((thread.latency_ns(None), thread.latency_ns(Some(WaitKind::Preempt))), (2, 0));
        assert_eq!((thread.name.as_str(), thread.open_count), ("thread 7", 0));
        assert_eq!(schedule.slices.len(), 2);
    }

    #[test]
    fn waits_over_lost_events_are_invalid() {
        let rows = [
            // Woken before the gap, runs after it.
            (vec![waking(10, 7), switch(30, 0, (0, 0), 7)], 15, 20, 0, 1),
            // Scheduled on another CPU within the gap.
            (vec![waking(10, 7), switch(17, 0, (0, 0), 7), switch(30, 0, (7, SLEEPS), 0)], 15, 20, 0, 1),
            // Before the gap, and after it.
            (vec![waking(10, 7), switch(12, 0, (0, 0), 7), waking(20, 8), switch(30, 0, (7, SLEEPS), 8)], 15, 20, 2, 0),
        ];
        for (events, start_ns, end_ns, waits, invalid) in rows {
            let schedule = schedule(&events, &[Gap { cpu: 1, start_ns, end_ns }]);
            let found: usize = schedule.threads.values().map(|thread| thread.waits.len()).sum();
            assert_eq!((found, schedule.invalid_count), (waits, invalid), "{events:?}");
        }
    }

    #[test]
    fn a_switch_that_was_missed_ends_no_wait_and_no_slice() {
        let events = [
            switch(1, 0, (0, 0), 7),
            waking(2, 8),
            // The switch 7 → 8 is missing.
            switch(9, 0, (8, SLEEPS), 9),
            waking(10, 8),
            switch(12, 0, (9, SLEEPS), 8),
        ];
        let schedule = schedule(&events, &[]);
        let waits = |tid: i32| schedule.threads[&tid].waits.len();
        assert_eq!((waits(7), waits(8), waits(9)), (0, 1, 0));
        assert_eq!((schedule.threads[&7].running_ns, schedule.threads[&8].running_ns), (0, 0));
        assert_eq!((schedule.unexplained_count, schedule.threads[&8].invalid_count), (1, 1));
    }

    #[test]
    fn descendants_follow_creation() {
        let make = |parent, tid, clone_flags| Event {
            time_ns: 1,
            cpu: 0,
            tid: parent,
            kind: EventKind::NewTask { tid, name: name(tid), clone_flags },
        };
        let schedule = schedule(&[make(1, 2, 0), make(2, 3, CLONE_THREAD), make(3, 4, 0), make(9, 10, 0)], &[]);
        assert_eq!(schedule.descendants(2), [2, 3, 4]);
        assert!(schedule.threads[&3].is_thread_of_parent && !schedule.threads[&4].is_thread_of_parent);
    }
}
