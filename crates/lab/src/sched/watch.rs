//! `floe lab sched`: the scheduling latency of running threads.

use std::{
    collections::{BTreeMap, HashSet},
    time::{Duration, Instant},
};

use serde::Serialize;

use super::{
    NamePattern,
    schedstat::{ThreadTotals, process_totals, totals_between},
    schedule::{Schedule, ThreadSchedule, WaitKind},
    work::WorkSchedule,
};
use crate::{
    Error, Result,
    interrupt_sys::Interrupt,
    launch::Tier,
    machine::{Environment, Undo},
    report::{Page, Series, Table, histogram, losses_line, number, tail_plot},
    statistics::Summary,
    trace::{Collector, CollectorOptions, ProcessTree},
};

/// How often a recording is taken out of the kernel's buffers.
const WINDOW: Duration = Duration::from_secs(1);
/// The maximum number of single waits kept per thread; further ones count in its totals only.
const WAITS_MAX: usize = 1 << 20;

/// The threads to watch.
#[derive(Clone, Debug)]
pub struct SchedOptions {
    /// Threads with such names.
    pub threads: Vec<NamePattern>,
    /// All threads of processes whose command has such a name.
    pub processes: Vec<NamePattern>,
    /// Work items of kernel queues with such names.
    pub workqueues: Vec<NamePattern>,
    /// The duration; unlimited if `None`.
    pub duration: Option<Duration>,
    /// The method of measuring; the best available one if `None`.
    pub tier: Option<Tier>,
}

/// The results.
#[derive(Clone, Debug, Serialize)]
pub struct SchedReport {
    /// The method of measuring.
    pub tier: Tier,
    /// The duration in nanoseconds.
    pub duration_ns: u64,
    /// A row for each thread, the longest total wait first.
    pub rows: Vec<SchedRow>,
    /// Lost trace records.
    pub lost_records: u64,
    /// Switches missing from the trace.
    pub unexplained_switches: u64,
    /// Switches missing from tracing but present in perf events.
    pub restored_switches: u64,
    /// The machine.
    pub environment: Environment,
    /// Remarks for the reader.
    pub notes: Vec<String>,
}

/// The schedule of one thread or one kernel queue.
#[derive(Clone, Debug, Default, Serialize)]
pub struct SchedRow {
    /// Its name.
    pub name: String,
    /// Its thread ID; `None` for a queue.
    pub tid: Option<i32>,
    /// Single waits in nanoseconds; empty if the method does not show them.
    pub waits_ns: Vec<u64>,
    /// The number of waits, including those not kept singly.
    pub wait_count: u64,
    /// Waits after wakeups, in nanoseconds.
    pub wake_ns: u64,
    /// Waits after preemption, in nanoseconds.
    pub preempt_ns: u64,
    /// The sum of both.
    pub total_ns: u64,
    /// Running time in nanoseconds.
    pub running_ns: u64,
    /// Waits of unknown length.
    pub invalid_count: u64,
}

/// Watches; calls `live` once a second with the rows so far.
pub fn watch(options: &SchedOptions, interrupt: &Interrupt, live: &mut dyn FnMut(&SchedReport)) -> Result<SchedReport> {
    if options.threads.is_empty() && options.processes.is_empty() && options.workqueues.is_empty() {
        return Err(Error::new("nothing to watch: name threads, processes or kernel queues"));
    }
    let undo = Undo::new()?;
    let mut report = SchedReport {
        tier: Tier::Tracing,
        duration_ns: 0,
        rows: Vec::new(),
        lost_records: 0,
        unexplained_switches: 0,
        restored_switches: 0,
        environment: Environment::read(),
        notes: Vec::new(),
    };
    let collector = match options.tier {
        Some(Tier::Counting) => None,
        tier => match Collector::new(&undo, CollectorOptions::default()) {
            Ok(collector) => Some(collector),
            Err(error) if tier == Some(Tier::Tracing) => return Err(error),
            Err(error) => {
                report.notes.push(format!(
                    "{error}; measured by the kernel's per-thread counts: totals only, no kernel queues"
                ));
                None
            }
        },
    };
    match collector {
        Some(collector) => watch_traced(options, collector, interrupt, live, report),
        None => watch_counted(options, interrupt, live, report),
    }
}

fn watch_traced(
    options: &SchedOptions,
    mut collector: Collector,
    interrupt: &Interrupt,
    live: &mut dyn FnMut(&SchedReport),
    mut report: SchedReport,
) -> Result<SchedReport> {
    let begin = Instant::now();
    let mut threads = BTreeMap::new();
    let mut queues: Vec<SchedRow> = options
        .workqueues
        .iter()
        .map(|queue| SchedRow { name: format!("work items of {queue}"), ..SchedRow::default() })
        .collect();
    report.notes.push("waits that span the end of a one-second recording are omitted".to_owned());
    while !is_over(options, begin, interrupt) {
        collector.start()?;
        rest(options, begin, interrupt);
        let trace = collector.stop()?;
        report.duration_ns += trace.duration_ns();
        report.lost_records += trace.lost;
        let schedule = Schedule::new(&trace);
        report.unexplained_switches += schedule.unexplained_count;
        report.restored_switches += schedule.restored_count;
        add_threads(&mut threads, options, &schedule);
        for (queue, row) in options.workqueues.iter().zip(&mut queues) {
            add_work(row, &WorkSchedule::new(&trace, queue));
        }
        report.rows = threads.values().cloned().chain(queues.iter().cloned()).collect();
        report.rows.sort_by_key(|row| std::cmp::Reverse(row.total_ns));
        live(&report);
    }
    Ok(report)
}

fn add_threads(rows: &mut BTreeMap<i32, SchedRow>, options: &SchedOptions, schedule: &Schedule) {
    let of_processes = threads_of(&options.processes);
    let is_wanted = |tid: i32, thread: &ThreadSchedule| {
        of_processes.contains(&tid) || options.threads.iter().any(|pattern| pattern.matches(&thread.name))
    };
    for (&tid, thread) in schedule.threads.iter().filter(|(tid, thread)| is_wanted(**tid, thread)) {
        let row = rows.entry(tid).or_insert_with(|| SchedRow { tid: Some(tid), ..SchedRow::default() });
        row.name.clone_from(&thread.name);
        row.add_waits(thread.waits.iter().map(super::schedule::Wait::duration_ns));
        row.wake_ns += thread.latency_ns(Some(WaitKind::Wake));
        row.preempt_ns += thread.latency_ns(Some(WaitKind::Preempt));
        row.total_ns = row.wake_ns + row.preempt_ns;
        row.running_ns += thread.running_ns;
        row.invalid_count += thread.invalid_count;
    }
}

fn add_work(row: &mut SchedRow, work: &WorkSchedule) {
    row.add_waits(work.items.iter().map(super::work::WorkItem::latency_ns));
    row.wake_ns += work.items.iter().map(super::work::WorkItem::latency_ns).sum::<u64>();
    row.total_ns = row.wake_ns;
    row.running_ns +=
        work.items.iter().filter_map(|item| Some(item.end_ns?.saturating_sub(item.start_ns))).sum::<u64>();
    row.invalid_count += work.invalid_count;
}

fn watch_counted(
    options: &SchedOptions,
    interrupt: &Interrupt,
    live: &mut dyn FnMut(&SchedReport),
    mut report: SchedReport,
) -> Result<SchedReport> {
    report.tier = Tier::Counting;
    // The first reading takes long with many processes, and is no part of what is watched.
    let before = totals_of(options);
    let begin = Instant::now();
    while !is_over(options, begin, interrupt) {
        rest(options, begin, interrupt);
        report.duration_ns = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let rows = totals_between(&before, &totals_of(options)).into_iter().map(|(tid, totals)| SchedRow {
            name: totals.name.clone(),
            tid: Some(tid),
            wait_count: totals.slice_count,
            total_ns: totals.waiting_ns,
            running_ns: totals.running_ns,
            ..SchedRow::default()
        });
        report.rows = rows.collect();
        report.rows.sort_by_key(|row| std::cmp::Reverse(row.total_ns));
        live(&report);
    }
    Ok(report)
}

fn totals_of(options: &SchedOptions) -> BTreeMap<i32, ThreadTotals> {
    let of_processes = threads_of(&options.processes);
    let tree = ProcessTree::read();
    let mut totals = BTreeMap::new();
    for &pid in tree.processes.keys() {
        totals.extend(process_totals(pid.cast_unsigned()).unwrap_or_default());
    }
    totals.retain(|tid, totals| {
        of_processes.contains(tid) || options.threads.iter().any(|pattern| pattern.matches(&totals.name))
    });
    totals
}

/// The threads of processes whose main thread has such a name.
fn threads_of(processes: &[NamePattern]) -> HashSet<i32> {
    if processes.is_empty() {
        return HashSet::new();
    }
    let tree = ProcessTree::read();
    let is_named = |pid: i32| {
        tree.threads.get(&pid).is_some_and(|first| processes.iter().any(|pattern| pattern.matches(&first.name)))
    };
    tree.threads.iter().filter(|(_, thread)| is_named(thread.pid)).map(|(&tid, _)| tid).collect()
}

fn is_over(options: &SchedOptions, begin: Instant, interrupt: &Interrupt) -> bool {
    interrupt.is_requested() || options.duration.is_some_and(|duration| begin.elapsed() >= duration)
}

/// Waits for the end of the interval, or of the whole run.
fn rest(options: &SchedOptions, begin: Instant, interrupt: &Interrupt) {
    let window = Instant::now();
    while window.elapsed() < WINDOW && !is_over(options, begin, interrupt) {
        let left = options.duration.map_or(WINDOW, |duration| duration.saturating_sub(begin.elapsed()));
        std::thread::sleep(Duration::from_millis(20).min(left));
    }
}

impl SchedRow {
    fn add_waits(&mut self, waits_ns: impl Iterator<Item = u64>) {
        for wait_ns in waits_ns {
            self.wait_count += 1;
            if self.waits_ns.len() < WAITS_MAX {
                self.waits_ns.push(wait_ns);
            }
        }
    }
}

impl SchedReport {
    /// A row for each thread, in the format of `perf sched latency`.
    pub fn table(&self, row_count_max: usize) -> Table {
        let head =
            ["thread", "waits", "total (ms)", "wake", "preempt", "average (µs)", "p50", "p99", "maximum", "ran (ms)"];
        let mut table = Table::new(head);
        for row in self.rows.iter().take(row_count_max) {
            let waits: Vec<f64> = row.waits_ns.iter().map(|&wait| wait as f64 / 1000.0).collect();
            let summary = Summary::new(&waits);
            let known = |value: f64| if waits.is_empty() { "—".to_owned() } else { number(value) };
            let name = row.tid.map_or(row.name.clone(), |tid| format!("{}:{tid}", row.name));
            let milliseconds = |nanoseconds: u64| format!("{:.3}", nanoseconds as f64 / 1e6);
            let apart = |value: u64| if waits.is_empty() { "—".to_owned() } else { milliseconds(value) };
            table.row([
                name,
                row.wait_count.to_string(),
                milliseconds(row.total_ns),
                apart(row.wake_ns),
                apart(row.preempt_ns),
                known(summary.average),
                known(summary.median),
                known(summary.p99),
                known(summary.maximum),
                milliseconds(row.running_ns),
            ]);
        }
        table
    }

    /// The whole report as text.
    pub fn text(&self) -> String {
        format!("{}\n\n{}\n\n{}\n", self.title(), self.table(usize::MAX), self.lines().join("\n"))
    }

    /// The report as a self-contained page.
    pub fn page(&self) -> String {
        let mut page = Page::new("Scheduling latency", &self.title());
        page.table(&self.table(usize::MAX));
        let shown = self.rows.iter().filter(|row| !row.waits_ns.is_empty()).take(6).enumerate();
        let series: Vec<Series> = shown
            .map(|(colour, row)| Series {
                name: row.tid.map_or(row.name.clone(), |tid| format!("{}:{tid}", row.name)),
                values: row.waits_ns.iter().map(|&wait| wait as f64 / 1000.0).collect(),
                colour,
            })
            .collect();
        if !series.is_empty() {
            page.figure("Single waits of the threads with the longest total wait.", &tail_plot(&series, "µs"));
            page.figure("Waits in powers of two.", &histogram(&series, "µs"));
        }
        page.lines(&self.lines());
        page.finish()
    }

    fn title(&self) -> String {
        format!("{} threads over {:.2} s; measured by {}", self.rows.len(), self.duration_ns as f64 / 1e9, self.tier)
    }

    fn lines(&self) -> Vec<String> {
        let invalid: u64 = self.rows.iter().map(|row| row.invalid_count).sum();
        let switches = (self.restored_switches, self.unexplained_switches);
        let mut lines = vec![losses_line(self.lost_records, switches, invalid)];
        lines.extend(self.environment.lines().into_iter().take(3));
        lines.extend(self.notes.iter().map(|note| format!("note: {note}")));
        lines
    }
}
