//! `floe lab alloc`: measures how long pages take to allocate, from the system and from a pool, with and without memory
//! pressure.

use std::ffi::CStr;
use std::io::{Read, Write};
use std::os::fd::{AsFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::time::ClockId;
use serde::Serialize;

use crate::alloc_sys::Mapping;
use crate::error::ErrorContext;
use crate::interrupt_sys::Interrupt;
use crate::load::{Load, LoadKind};
use crate::process_sys::{ForkedChild, receive_byte, send_number};
use crate::report::{Page, Series, Table, number, percent, strip_plot};
use crate::stage::{Stage, StageOptions, Surroundings};
use crate::statistics::{Interval, Summary, difference_percent};
use crate::{Error, Result};

/// The time limit of a round. A longer round means that its process was killed, or that the machine is stalled.
const ROUND_TIME_MAX: Duration = Duration::from_secs(30);
/// The minimum of memory that the hog leaves to other processes. With less, they are killed.
const LEFT_BYTES_MIN: u64 = 5 << 19;
/// The maximum number of pages per request.
const PAGES_MAX: usize = 65_536;

/// The parameters of the measurement.
#[derive(Clone, Debug)]
pub struct AllocOptions {
    /// Pages allocated in each round, as one decode needs them: 16 for a window of 64 KiB, 4 for 16 KiB.
    pub page_count: usize,
    /// Rounds for each source of pages, with and without pressure.
    pub round_count: usize,
    /// The memory limit that causes pressure, in bytes.
    pub limit_bytes: u64,
    /// The pause between rounds.
    pub rest: Duration,
}

impl Default for AllocOptions {
    fn default() -> Self {
        Self { page_count: 64, round_count: 200, limit_bytes: 40 << 20, rest: Duration::from_millis(2) }
    }
}

/// The results.
#[derive(Clone, Debug, Serialize)]
pub struct AllocReport {
    /// Pages allocated in each round.
    pub page_count: usize,
    /// The memory limit that caused pressure, in bytes.
    pub limit_bytes: u64,
    /// Four columns: the system and the pool, with and without pressure.
    pub columns: Vec<AllocColumn>,
    /// Whether the pool's pages could be locked; if not, memory pressure can reclaim them.
    pub is_pool_locked: bool,
    /// The conditions of the measurement.
    pub surroundings: Surroundings,
}

/// One source of pages.
#[derive(Clone, Debug, Serialize)]
pub struct AllocColumn {
    /// Its name.
    pub name: String,
    /// Whether there was memory pressure.
    pub is_pressed: bool,
    /// The duration of each round, in nanoseconds.
    pub rounds_ns: Vec<u64>,
}

/// Measures. Memory pressure needs root; without root, the run measures only the columns without pressure.
pub fn run(options: &AllocOptions, interrupt: &Interrupt) -> Result<AllocReport> {
    if options.page_count == 0 || options.page_count > PAGES_MAX || options.round_count == 0 {
        return Err(Error::new(format!("pages must be 1 to {PAGES_MAX}, rounds at least 1")));
    }
    std::thread::scope(|scope| {
        scope.spawn(|| run_here(options, interrupt)).join().map_err(|_| Error::new("the run panicked"))?
    })
}

fn run_here(options: &AllocOptions, interrupt: &Interrupt) -> Result<AllocReport> {
    let mut stage = Stage::new(&StageOptions::default(), interrupt)?;
    let mut columns = Vec::new();
    let mut is_pool_locked = true;
    for is_pressed in [false, true] {
        // The hog gets almost all memory below the limit. The filler and the measured processes compete for the rest.
        let left_bytes = (options.limit_bytes / 16).max(LEFT_BYTES_MIN);
        let (limit_bytes, hog_bytes) = (options.limit_bytes, options.limit_bytes.saturating_sub(left_bytes));
        let kinds = if is_pressed { vec![LoadKind::Memory { limit_bytes, hog_bytes }] } else { Vec::new() };
        // Replaces the empty load of the stage, so that the report contains the counts of this one.
        match Load::start(&stage.undo, &kinds) {
            Ok(load) => stage.load = load,
            Err(error) => {
                stage.note(format!("{error}: measured without memory pressure only"));
                break;
            }
        }
        let mut allocators = [PageAllocator::spawn(false, options)?, PageAllocator::spawn(true, options)?];
        is_pool_locked &= allocators[1].is_locked;
        for allocator in &allocators {
            stage.load.confine_process(allocator.child.pid())?;
        }
        if is_pressed {
            // Waits until the group is full.
            std::thread::sleep(Duration::from_secs(1));
        }
        let mut rounds_ns = [Vec::new(), Vec::new()];
        for round in 0..options.round_count {
            if interrupt.is_requested() {
                stage.note("ended early");
                break;
            }
            stage.load.revive()?;
            for turn in 0..2 {
                let index = (turn + round) % 2;
                rounds_ns[index].push(allocators[index].round()?);
                std::thread::sleep(options.rest);
            }
        }
        for (name, rounds_ns) in ["mmap and touch", "page pool"].into_iter().zip(rounds_ns) {
            let when = if is_pressed { "pressed" } else { "calm" };
            columns.push(AllocColumn { name: format!("{name}, {when}"), is_pressed, rounds_ns });
        }
    }
    let (page_count, limit_bytes) = (options.page_count, options.limit_bytes);
    Ok(AllocReport { page_count, limit_bytes, columns, is_pool_locked, surroundings: stage.end() })
}

/// A process that allocates pages on request and reports how long it took.
struct PageAllocator {
    child: ForkedChild,
    line: UnixStream,
    is_locked: bool,
}

impl PageAllocator {
    fn spawn(from_pool: bool, options: &AllocOptions) -> Result<Self> {
        let page_bytes = rustix::param::page_size();
        let size_bytes = options.page_count * page_bytes;
        let (line, far) = UnixStream::pair().context(|| "cannot make a socket pair".to_owned())?;
        line.set_read_timeout(Some(ROUND_TIME_MAX)).context(|| "cannot set a time limit".to_owned())?;
        let name: &CStr = if from_pool { c"floe-pool" } else { c"floe-mmap" };
        let child =
            ForkedChild::spawn(name, Some(far.as_fd()), |kept| allocate_pages(kept, from_pool, size_bytes, page_bytes));
        let mut allocator = Self {
            child: child.context(|| "cannot start a page allocation process".to_owned())?,
            line,
            is_locked: false,
        };
        drop(far);
        allocator.is_locked = allocator.read_number()? == 1;
        Ok(allocator)
    }

    fn round(&mut self) -> Result<u64> {
        self.line.write_all(&[1]).context(|| "the page allocation process has exited".to_owned())?;
        self.read_number()
    }

    fn read_number(&mut self) -> Result<u64> {
        let mut bytes = [0; 8];
        let read = self.line.read_exact(&mut bytes);
        read.context(|| "no answer from the page allocation process (was it killed by the OOM killer?)".to_owned())?;
        Ok(u64::from_ne_bytes(bytes))
    }
}

/// The body of the process. It does not allocate, apart from the measured pages, and takes no locks.
fn allocate_pages(line: RawFd, from_pool: bool, size_bytes: usize, page_bytes: usize) {
    let pool = if from_pool { Mapping::new(size_bytes).ok() } else { None };
    let is_locked = pool.as_ref().is_some_and(|pool| {
        pool.touch(page_bytes);
        pool.lock()
    });
    if !send_number(line, u64::from(is_locked)) {
        return;
    }
    while receive_byte(line) {
        let begin = now_ns();
        match &pool {
            Some(pool) => pool.touch(page_bytes),
            None => match Mapping::new(size_bytes) {
                Ok(fresh) => fresh.touch(page_bytes),
                Err(_) => return,
            },
        }
        if !send_number(line, now_ns() - begin) {
            return;
        }
    }
}

fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

impl AllocReport {
    /// A table, including the published result.
    pub fn table(&self) -> Table {
        let mut table =
            Table::new(["time to get pages (µs)", "mmap and touch", "page pool", "diff", "95 % of the difference"]);
        for is_pressed in [false, true] {
            let columns: Vec<Vec<f64>> = self.columns(is_pressed);
            let [system, pool] = columns.as_slice() else { continue };
            let (left, right) = (Summary::new(system), Summary::new(pool));
            let when = if is_pressed { "pressed" } else { "calm" };
            let mut row = |title: &str, value: fn(&Summary) -> f64, bounds: String| {
                let difference = difference_percent(value(&left), value(&right)).map_or(String::new(), percent);
                table.row([
                    format!("{title}, {when}"),
                    number(value(&left)),
                    number(value(&right)),
                    difference,
                    bounds,
                ]);
            };
            let interval = Interval::of_difference_percent(system, pool);
            let bounds = interval.map_or(String::new(), |i| format!("{}…{}", percent(i.low), percent(i.high)));
            row("Average", |summary| summary.average, bounds);
            row("Median", |summary| summary.median, String::new());
            row("p99", |summary| summary.p99, String::new());
            row("Maximum", |summary| summary.maximum, String::new());
        }
        table.row(["Published (Android, a launch)", "3434000", "21000", "−99.38%", ""]);
        table
    }

    /// The whole report as text.
    pub fn text(&self) -> String {
        format!("{}\n\n{}\n{}\n", self.title(), self.table(), self.lines().join("\n"))
    }

    /// The report as a self-contained page.
    pub fn page(&self) -> String {
        let mut page = Page::new("Time to get pages", &self.title());
        page.table(&self.table());
        let series: Vec<Series> = self
            .columns
            .iter()
            .enumerate()
            .map(|(colour, column)| Series {
                name: column.name.clone(),
                values: microseconds(&column.rounds_ns),
                colour,
            })
            .collect();
        page.figure("One dot per round; the line marks the median.", &strip_plot(&series, "µs"));
        page.lines(&self.lines());
        page.finish()
    }

    fn title(&self) -> String {
        format!(
            "{} pages at a time; pressure: a memory control group of {} MiB",
            self.page_count,
            self.limit_bytes >> 20
        )
    }

    fn lines(&self) -> Vec<String> {
        let rounds: Vec<_> = self.columns.iter().map(|column| column.rounds_ns.len().to_string()).collect();
        let locked = if self.is_pool_locked { "locked" } else { "not locked: permission denied" };
        let mut lines = vec![format!("rounds: {}; the pool's pages are {locked}", rounds.join(", "))];
        lines.extend(self.surroundings.lines());
        lines
    }

    fn columns(&self, is_pressed: bool) -> Vec<Vec<f64>> {
        let columns = self.columns.iter().filter(|column| column.is_pressed == is_pressed);
        columns.map(|column| microseconds(&column.rounds_ns)).collect()
    }
}

fn microseconds(nanoseconds: &[u64]) -> Vec<f64> {
    nanoseconds.iter().map(|&value| value as f64 / 1000.0).collect()
}
