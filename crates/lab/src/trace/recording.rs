//! A recording: events in order, gaps, and the processes and threads of the machine.

use std::{collections::BTreeMap, fs};

use super::{
    arrival::{Arrival, close_chain, resolve_states},
    decoder::Decoder,
    event::{Event, EventKind},
    page::{Lost, PageLayout},
    tracefs::BufferStatistics,
};
use crate::Result;

/// The data of one CPU's reader.
#[derive(Debug, Default)]
pub(crate) struct CpuRecording {
    pub(crate) cpu: u32,
    /// Complete pages, one after another.
    pub(crate) pages: Vec<u8>,
    /// Pages that were read but discarded for lack of space.
    pub(crate) discarded_pages: u64,
    /// The number of records in those.
    pub(crate) discarded_records: u64,
    /// Thread arrivals from perf events; empty if they are not used.
    pub(crate) arrivals: Vec<Arrival>,
}

/// Events of all CPUs, oldest first.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// The events.
    pub events: Vec<Event>,
    /// Gaps, oldest first.
    pub gaps: Vec<Gap>,
    /// The start of the recording, in nanoseconds of the boot clock.
    pub start_ns: u64,
    /// The end of the recording.
    pub end_ns: u64,
    /// The kernel's buffer statistics per CPU for this recording.
    pub buffers: Vec<BufferStatistics>,
    /// Records read; with `lost`, all records written.
    pub record_count: u64,
    /// Records lost, by the kernel's count and ours.
    pub lost: u64,
    /// The number of times that a CPU left a thread without an event that it had entered it.
    ///
    /// On some virtual machines, tracing misses switches without counting them as lost, even when the kernel itself
    /// reads its buffers; for example all switches of one CPU away from its idle task, until the machine restarts.
    /// Waits that depend on such a switch are invalid, unless perf events restore it.
    pub unexplained_switch_count: u64,
    /// Switches restored from perf events; they are among the events.
    pub restored_switch_count: u64,
}

/// A period in which a CPU's events are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// The CPU.
    pub cpu: u32,
    /// The last event before the gap.
    pub start_ns: u64,
    /// The first event after the gap.
    pub end_ns: u64,
}

impl Trace {
    /// Decodes and sorts the data of the readers.
    pub(crate) fn new(
        recordings: &[CpuRecording],
        layout: &PageLayout,
        decoder: &Decoder,
        (start_ns, end_ns): (u64, u64),
        buffers: Vec<BufferStatistics>,
    ) -> Result<Self> {
        let lost = buffers.iter().map(BufferStatistics::lost).sum();
        let mut trace = Self { start_ns, end_ns, buffers, lost, ..Self::default() };
        for recording in recordings {
            trace.add(recording, layout, decoder)?;
        }
        trace.events.sort_by_key(|event| event.time_ns);
        if trace.restored_switch_count > 0 {
            resolve_states(&mut trace.events);
        }
        trace.gaps.sort_by_key(|gap| gap.start_ns);
        Ok(trace)
    }

    fn add(&mut self, recording: &CpuRecording, layout: &PageLayout, decoder: &Decoder) -> Result<()> {
        let cpu = recording.cpu;
        let mut last_ns = self.start_ns;
        // The events between two gaps.
        let mut stretch = Vec::new();
        for bytes in recording.pages.chunks(layout.page_size()) {
            let page = layout.page(bytes)?;
            if page.lost != Lost::Nothing {
                self.gaps.push(Gap { cpu, start_ns: last_ns, end_ns: page.time_ns.max(last_ns) });
                self.add_stretch(std::mem::take(&mut stretch), &recording.arrivals);
            }
            for record in page.records() {
                let (time_ns, record) = record?;
                last_ns = time_ns;
                self.record_count += 1;
                stretch.extend(decoder.event(time_ns, cpu, record)?);
            }
        }
        self.add_stretch(stretch, &recording.arrivals);
        if recording.discarded_pages > 0 {
            self.gaps.push(Gap { cpu, start_ns: last_ns, end_ns: self.end_ns.max(last_ns) });
            self.lost += recording.discarded_records;
        }
        Ok(())
    }

    /// Adds events of one CPU without known losses among them.
    fn add_stretch(&mut self, mut events: Vec<Event>, arrivals: &[Arrival]) {
        self.restored_switch_count += close_chain(&mut events, arrivals);
        let mut running = None;
        for event in &events {
            if let EventKind::Switch(switch) = event.kind {
                let is_explained = running.is_none_or(|tid| tid == switch.previous_tid);
                self.unexplained_switch_count += u64::from(!is_explained);
                running = Some(switch.next_tid);
            }
        }
        self.events.extend(events);
    }

    /// Whether no events were lost.
    pub fn is_complete(&self) -> bool {
        self.lost == 0 && self.gaps.is_empty()
    }

    /// The duration in nanoseconds.
    pub fn duration_ns(&self) -> u64 {
        self.end_ns.saturating_sub(self.start_ns)
    }
}

/// Processes and threads at a moment, or over a period.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessTree {
    /// By process ID.
    pub processes: BTreeMap<i32, Process>,
    /// By thread ID.
    pub threads: BTreeMap<i32, Thread>,
}

/// A process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// The parent's process ID.
    pub parent_pid: i32,
    /// Its command line; for kernel threads, the name in brackets.
    pub command_line: Vec<String>,
    /// Its owner.
    pub uid: u32,
}

/// A thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Thread {
    /// Its process.
    pub pid: i32,
    /// Its name.
    pub name: String,
}

impl ProcessTree {
    /// Reads all processes and threads from `/proc`.
    pub fn read() -> Self {
        let mut tree = Self::default();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
            let read = |file: &str| fs::read_to_string(entry.path().join(file)).unwrap_or_default();
            let status = read("status");
            let number = |key: &str| {
                let value = status.lines().find_map(|line| line.strip_prefix(key))?;
                value.split_whitespace().next()?.parse::<u32>().ok()
            };
            let Some(parent_pid) = number("PPid:") else { continue };
            let mut command_line: Vec<String> =
                read("cmdline").split('\0').filter(|word| !word.is_empty()).map(str::to_owned).collect();
            if command_line.is_empty() {
                command_line.push(read("comm").trim_end().to_owned());
            }
            let process =
                Process { parent_pid: parent_pid.cast_signed(), command_line, uid: number("Uid:").unwrap_or(0) };
            tree.processes.insert(pid, process);
            for task in fs::read_dir(entry.path().join("task")).into_iter().flatten().flatten() {
                let Some(tid) = task.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
                let Ok(name) = fs::read_to_string(task.path().join("comm")) else { continue };
                tree.threads.insert(tid, Thread { pid, name: name.trim_end().to_owned() });
            }
        }
        tree
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_and_its_threads_are_listed() {
        let pid = std::process::id().cast_signed();
        let (send, receive) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::Builder::new().name("lab-tree".into()).spawn(move || receive.recv()).unwrap();
        // A thread sets its name when it starts.
        let named = |tree: &ProcessTree| tree.threads.values().any(|t| t.pid == pid && t.name == "lab-tree");
        assert!((0..5000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(2));
            named(&ProcessTree::read())
        }));
        let tree = ProcessTree::read();
        assert!(!tree.processes[&pid].command_line.is_empty());
        drop(send);
        assert!(thread.join().unwrap().is_err());
    }
}
