//! Records the events of all CPUs in memory.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use floe_image::ShownName;
use rustix::event::{EventfdFlags, PollFd, PollFlags};
use rustix::thread::CpuSet;
use rustix::time::ClockId;

use super::arrival::arrivals;
use super::decoder::{Decoder, EVENTS};
use super::page::PageLayout;
use super::perf_ring_sys::{PerfEvent, PerfRing};
use super::recording::{CpuRecording, Trace};
use super::tracefs::{Instance, Tracefs};
use crate::error::ErrorContext;
use crate::machine::Undo;
use crate::{Error, Result};

/// The size of each CPU's perf ring in bytes; a power of two.
const PERF_RING_BYTES: usize = 1 << 20;
/// The number of short sleeps on each CPU that test whether tracing misses switches there.
const NAP_COUNT: u32 = 5;
/// The length of each sleep.
const NAP: Duration = Duration::from_micros(300);

/// The options of the collector.
#[derive(Clone, Copy, Debug)]
pub struct CollectorOptions {
    /// The kernel's buffer per CPU, in KiB.
    pub buffer_kib: u32,
    /// The fill level of a buffer, in percent, at which its reader is woken.
    pub wake_percent: u8,
    /// The maximum trace bytes kept per CPU and recording; further data is discarded and counted.
    pub kept_bytes_max: usize,
}

impl Default for CollectorOptions {
    fn default() -> Self {
        Self { buffer_kib: 4096, wake_percent: 40, kept_bytes_max: 512 << 20 }
    }
}

/// A private tracing instance with a reader for each CPU.
#[derive(Debug)]
pub struct Collector {
    // Dropped in this order: readers must close their files before the instance can be removed.
    readers: Vec<Reader>,
    instance: Instance,
    _tracefs: Tracefs,
    layout: PageLayout,
    decoder: Decoder,
    start_ns: u64,
    missing_events: Vec<&'static str>,
    /// Whether the events are disabled.
    is_resting: bool,
    /// Whether perf events are recorded too, because tracing misses switches.
    has_second_witness: bool,
}

impl Collector {
    /// Sets everything up; recording starts with [`Collector::start`].
    pub fn new(undo: &Undo, options: CollectorOptions) -> Result<Self> {
        let tracefs = Tracefs::open()?;
        tracefs.remove_left_over();
        let instance = tracefs.instance(undo)?;
        instance.write("tracing_on", "0")?;
        instance.write("trace_clock", "boot")?;
        instance.write("buffer_size_kb", &options.buffer_kib.to_string())?;
        // Before Linux 5.0, every event wakes the readers.
        let _ = instance.write("buffer_percent", &options.wake_percent.to_string());
        let mut formats = Vec::new();
        let mut missing_events = Vec::new();
        for (group, event, is_needed) in EVENTS {
            match instance.enable(group, event)? {
                Some(format) => formats.push(format),
                None if is_needed => {
                    return Err(Error::new(format!("this kernel has no event {group}:{event} to trace")));
                }
                None => missing_events.push(event),
            }
        }
        formats.extend(instance.format("ftrace", "print").ok());
        let layout = instance.page_layout()?;
        let readers = instance.cpus()?.into_iter().map(|cpu| Reader::spawn(&instance, cpu, &layout, options)).collect();
        let mut collector = Self {
            readers: Result::from_iter::<Vec<_>>(readers)?,
            instance,
            _tracefs: tracefs,
            layout,
            decoder: Decoder::new(&formats)?,
            start_ns: 0,
            missing_events,
            is_resting: false,
            has_second_witness: false,
        };
        // The end of this test recording shows whether switches are missing.
        collector.start()?;
        nap_on_each_cpu();
        collector.stop()?;
        Ok(collector)
    }

    /// Whether tracing misses switches on this machine, so that perf events are recorded too.
    pub fn has_second_witness(&self) -> bool {
        self.has_second_witness
    }

    /// Events that this kernel lacks; results that depend on them are missing.
    pub(crate) fn missing_events(&self) -> &[&'static str] {
        &self.missing_events
    }

    /// The file through which any process can add lines to the recording as events.
    pub fn marker(&self) -> PathBuf {
        self.instance.shared_file("trace_marker")
    }

    /// Disables tracing until the next recording, so that it costs nothing.
    pub fn rest(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.is_resting, true) {
            return Ok(());
        }
        self.instance.write("events/enable", "0")
    }

    /// Starts a recording with empty buffers.
    pub fn start(&mut self) -> Result<()> {
        if std::mem::take(&mut self.is_resting) {
            for (group, event, _) in EVENTS {
                self.instance.enable(group, event)?;
            }
        }
        // Opening this file for writing with truncation empties the buffers.
        self.instance.write("trace", "")?;
        for reader in &self.readers {
            reader.drain()?;
        }
        self.start_ns = boot_time_ns();
        if self.has_second_witness {
            for perf in self.readers.iter().filter_map(|reader| reader.perf.as_ref()) {
                perf.record(true).context(|| "cannot record perf events".to_owned())?;
            }
        }
        self.instance.write("tracing_on", "1")
    }

    /// Ends the recording and decodes it.
    pub fn stop(&mut self) -> Result<Trace> {
        self.instance.write("tracing_on", "0")?;
        let end_ns = boot_time_ns();
        if self.has_second_witness {
            for perf in self.readers.iter().filter_map(|reader| reader.perf.as_ref()) {
                perf.record(false).context(|| "cannot stop perf events".to_owned())?;
            }
        }
        let mut recordings = Vec::new();
        let mut buffers = Vec::new();
        for reader in &self.readers {
            recordings.push(reader.drain()?);
            buffers.push(self.instance.statistics(reader.cpu)?);
        }
        let trace = Trace::new(&recordings, &self.layout, &self.decoder, (self.start_ns, end_ns), buffers)?;
        self.has_second_witness |= trace.unexplained_switch_count > 0;
        Ok(trace)
    }
}

/// The boot clock in nanoseconds, which the trace uses too.
pub(crate) fn boot_time_ns() -> u64 {
    let now = rustix::time::clock_gettime(ClockId::Boottime);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

/// Makes each CPU idle and wake up a few times.
fn nap_on_each_cpu() {
    let Ok(allowed) = rustix::thread::sched_getaffinity(None) else { return };
    for cpu in (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)) {
        let nap = move || {
            let mut only = CpuSet::new();
            only.set(cpu);
            if rustix::thread::sched_setaffinity(None, &only).is_ok() {
                (0..NAP_COUNT).for_each(|_| std::thread::sleep(NAP));
            }
        };
        // If the thread cannot be started, this test finds nothing, but later recordings show missing switches.
        let _ = std::thread::Builder::new().name("floe-nap".to_owned()).spawn(nap).map(JoinHandle::join);
    }
}

/// A thread that drains one CPU's buffer.
#[derive(Debug)]
struct Reader {
    cpu: u32,
    /// Enables and disables this CPU's perf events; `None` if they are not used.
    perf: Option<PerfEvent>,
    /// Written to request the data read so far.
    request: Arc<OwnedFd>,
    answers: Receiver<Result<CpuRecording>>,
    /// Dropped to end the thread.
    alive: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Reader {
    fn spawn(instance: &Instance, cpu: u32, layout: &PageLayout, options: CollectorOptions) -> Result<Self> {
        let path = instance.file(&format!("per_cpu/cpu{cpu}/trace_pipe_raw"));
        let pipe = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(&path)
            .context(|| format!("cannot open {}", path.shown()))?;
        let request = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let request = Arc::new(request.context(|| "cannot make an eventfd".to_owned())?);
        let (answer, answers) = channel();
        let (alive, is_alive) = channel::<()>();
        let perf = PerfEvent::context_switches_of_cpu(cpu, PERF_RING_BYTES as u32 / 2).ok();
        let ring = perf.clone().and_then(|perf| PerfRing::new(perf, PERF_RING_BYTES).ok());
        let perf = perf.filter(|_| ring.is_some());
        let pump = Pump { pipe, ring, request: Arc::clone(&request), layout: layout.clone(), options, cpu };
        let thread = std::thread::Builder::new()
            .name(format!("floe-trace/{cpu}"))
            .spawn(move || pump.run(&answer, &is_alive))
            .context(|| "cannot start a trace reader".to_owned())?;
        Ok(Self { cpu, perf, request, answers, alive: Some(alive), thread: Some(thread) })
    }

    /// Returns what was recorded since the last call.
    fn drain(&self) -> Result<CpuRecording> {
        self.ask()?;
        self.answers.recv().map_err(|_| Error::new(format!("the trace reader of CPU {} has ended", self.cpu)))?
    }

    fn ask(&self) -> Result<()> {
        let asked = rustix::io::write(&self.request, &1_u64.to_ne_bytes());
        asked.map(|_| ()).context(|| "cannot reach a trace reader".to_owned())
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.alive = None;
        if self.ask().is_ok()
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

/// The state of a reader's thread.
struct Pump {
    pipe: File,
    ring: Option<PerfRing>,
    request: Arc<OwnedFd>,
    layout: PageLayout,
    options: CollectorOptions,
    cpu: u32,
}

impl Pump {
    fn run(mut self, answer: &Sender<Result<CpuRecording>>, is_alive: &Receiver<()>) {
        // Under load, lost events do more harm than slightly delayed threads. The call fails without root.
        let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), -20);
        let mut recording = CpuRecording { cpu: self.cpu, ..CpuRecording::default() };
        let mut page = vec![0; self.layout.page_size()];
        let mut failure = None;
        loop {
            let mut polled = vec![PollFd::new(&*self.request, PollFlags::IN), PollFd::new(&self.pipe, PollFlags::IN)];
            polled.extend(self.ring.as_ref().map(|ring| PollFd::new(ring, PollFlags::IN)));
            if rustix::event::poll(&mut polled, None).is_err_and(|error| error != rustix::io::Errno::INTR) {
                return;
            }
            let is_asked = !polled[0].revents().is_empty();
            if polled.get(2).is_some_and(|ring| ring.revents().intersects(PollFlags::HUP | PollFlags::ERR)) {
                // The CPU is offline. Its ring would wake this thread again and again.
                self.ring = None;
            }
            self.read_arrivals(&mut recording);
            if let Err(error) = self.read(&mut recording, &mut page, is_asked) {
                failure = Some(error);
            }
            if is_asked {
                let _ = rustix::io::read(&*self.request, &mut [0_u8; 8]);
                if is_alive.try_recv() == Err(std::sync::mpsc::TryRecvError::Disconnected) {
                    return;
                }
                let fresh = CpuRecording { cpu: self.cpu, ..CpuRecording::default() };
                let recorded = std::mem::replace(&mut recording, fresh);
                if answer.send(failure.take().map_or(Ok(recorded), Err)).is_err() {
                    return;
                }
            }
        }
    }

    fn read_arrivals(&mut self, recording: &mut CpuRecording) {
        let Some(ring) = &mut self.ring else { return };
        let mut records = Vec::new();
        ring.drain(&mut records);
        if size_of_val(recording.arrivals.as_slice()) < self.options.kept_bytes_max {
            // Lost perf records leave a switch unexplained, which is counted there.
            arrivals(&records, &mut recording.arrivals);
        }
    }

    /// Reads pages until none is left, or until one that is still being filled.
    fn read(&self, recording: &mut CpuRecording, page: &mut [u8], to_the_end: bool) -> Result<()> {
        loop {
            let length = match (&self.pipe).read(page) {
                Ok(0) => return Ok(()),
                Ok(length) => length,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(Error::io(format!("cannot read the trace of CPU {}", self.cpu), error)),
            };
            page[length..].fill(0);
            let used = self.layout.page(page)?.used();
            if recording.pages.len() + page.len() > self.options.kept_bytes_max {
                recording.discarded_pages += 1;
                recording.discarded_records += self.layout.page(page)?.records().count() as u64;
            } else {
                recording.pages.extend_from_slice(page);
            }
            if !to_the_end && used < page.len() / 2 {
                return Ok(());
            }
        }
    }
}
