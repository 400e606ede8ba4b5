//! A stretch of time as events in order, and where some are missing.

use super::arrival::{Arrival, close_chain, resolve_states};
use super::decoder::Decoder;
use super::event::{Event, EventKind};
use super::page::{Lost, PageLayout};
use super::tracefs::BufferStatistics;
use crate::Result;

/// The pages that one CPU's reader kept.
#[derive(Debug, Default)]
pub(crate) struct CpuRecording {
    pub(crate) cpu: u32,
    /// Whole pages, one after another.
    pub(crate) pages: Vec<u8>,
    /// Pages that were read but not kept, for want of room.
    pub(crate) discarded_pages: u64,
    /// Records in those.
    pub(crate) discarded_records: u64,
    /// Which threads it took up, by perf events; empty where they were not asked for.
    pub(crate) arrivals: Vec<Arrival>,
}

/// Events of all CPUs, oldest first.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// The events.
    pub events: Vec<Event>,
    /// Where events are missing, oldest first.
    pub gaps: Vec<Gap>,
    /// When recording began, in nanoseconds of the boot clock.
    pub start_ns: u64,
    /// When recording ended.
    pub end_ns: u64,
    /// The kernel's counts for each CPU, over this recording.
    pub buffers: Vec<BufferStatistics>,
    /// Records that were read; with `lost`, all that were written.
    pub record_count: u64,
    /// Records that were lost, by the kernel's own count and ours.
    pub lost: u64,
    /// Times at which a CPU left a thread that it was never seen to take up.
    ///
    /// On some virtual machines tracing misses switches, in the kernel's own reading of its buffers too, and counts none of
    /// them as lost: all those with which one CPU leaves its idle task, say, until the machine is started anew. What
    /// such a switch would have told is invalid, unless perf events tell it.
    pub unexplained_switch_count: u64,
    /// Switches that tracing missed and perf events told; they are among the events.
    pub restored_switch_count: u64,
}

/// A time in which a CPU's events are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// The CPU.
    pub cpu: u32,
    /// The last event before.
    pub start_ns: u64,
    /// The first event after.
    pub end_ns: u64,
}

impl Trace {
    /// Decodes and sorts what the readers kept.
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
        // Events between two gaps.
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

    /// Adds events of one CPU between which none are known to be lost.
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

    /// Whether the recording is whole.
    pub fn is_complete(&self) -> bool {
        self.lost == 0 && self.gaps.is_empty()
    }

    /// How long recording went on, in nanoseconds.
    pub fn duration_ns(&self) -> u64 {
        self.end_ns.saturating_sub(self.start_ns)
    }
}
