//! Reads and writes reports in the text exposition format of Prometheus, version 0.0.4.

use std::{
    collections::HashSet,
    io::{self, Write},
};

use floe::remote::{CauseCounts, ImageCounts, ReasonCounts};
use floe_image::{MetricKind, harmless};

use super::{MetricGroup, report::Report};

/// Nanoseconds in a second.
const NS_PER_SECOND: f64 = 1e9;

/// Adds the report of a mount.
///
/// # Errors
/// The report has a duplicate sample, or the samples exceed the limit.
pub fn add_report(out: &mut MountSamples<'_>, report: &Report) -> io::Result<()> {
    let version =
        [("version", report.version.as_str()), ("image", &report.image.path), ("format", &report.image.format)];
    out.one("floe_mount_info", Kind::Gauge, "The mount and what serves it.", &version, 1.0)?;
    out.gauge("floe_uptime_seconds", "Time since the image was mounted.", report.uptime_seconds)?;
    let sandbox = &report.sandbox;
    let mechanisms =
        [("landlock", &sandbox.landlock), ("seccomp", &sandbox.seccomp), ("no_new_privs", &sandbox.no_new_privs)];
    let mechanisms = mechanisms.map(|(name, state)| (name, u64::from(state == "enforced")));
    out.header("floe_sandbox_enforced", Kind::Gauge, "Whether the kernel enforces this restriction.")?;
    for (name, is_enforced) in mechanisms {
        out.sample("floe_sandbox_enforced", &[("mechanism", name)], is_enforced as f64)?;
    }
    let kinds = report.requests.iter().map(|(kind, count)| (kind.as_str(), *count));
    out.family("floe_requests_total", "Requests of the kernel.", "kind", kinds)?;
    let reasons = report.faults.iter().map(|(reason, count)| (reason.as_str(), *count));
    out.family(
        "floe_request_faults_total",
        "Requests that failed because of the image, its source or memory.",
        "reason",
        reasons,
    )?;
    if let Some(counts) = report.remote.as_ref().and_then(|remote| remote.counts.as_ref()) {
        write_remote(out, counts)?;
        MetricGroup::of_remote(counts).iter().try_for_each(|group| write_metrics(out, group))?;
    }
    MetricGroup::of_report(&report.metrics).iter().try_for_each(|group| write_metrics(out, group))?;
    write_threads(out, report)?;
    write_latency(out, report)
}

fn write_metrics(out: &mut MountSamples<'_>, group: &MetricGroup) -> io::Result<()> {
    for (metric, value) in group.rows() {
        let kind = if metric.kind == MetricKind::Counter { Kind::Counter } else { Kind::Gauge };
        let (name, value) = group.sample(metric, value);
        out.one(&name, kind, metric.help.trim(), &[], value)?;
    }
    Ok(())
}

fn write_remote(out: &mut MountSamples<'_>, image: &ImageCounts) -> io::Result<()> {
    let counts = &image.remote;
    let by_cause =
        |count: fn(&CauseCounts) -> u64| counts.causes.iter().map(move |cause| (cause.cause.as_str(), count(cause)));
    let requests = by_cause(|cause| cause.requests);
    out.family("floe_remote_requests_total", "Answered requests to the image's server.", "cause", requests)?;
    let bytes = by_cause(|cause| cause.bytes);
    out.family("floe_remote_bytes_total", "Bytes in these answers.", "cause", bytes)?;
    let by_reason =
        |count: fn(&ReasonCounts) -> u64| image.ahead.iter().map(move |ahead| (ahead.reason.as_str(), count(ahead)));
    const AHEAD: &str = "Bytes fetched although no reader waited for them, by reason.";
    out.family("floe_remote_ahead_bytes_total", AHEAD, "reason", by_reason(|ahead| ahead.fetched_bytes))?;
    const READ: &str = "Those of these bytes that a reader has read since.";
    out.family("floe_remote_ahead_read_bytes_total", READ, "reason", by_reason(|ahead| ahead.read_bytes))?;
    let outage_s = counts.outage_ms.unwrap_or(0) as f64 / 1e3;
    out.gauge(
        "floe_remote_outage_seconds",
        "How long the server has been unreachable; 0 if it is reachable.",
        outage_s,
    )?;
    const NAME: &str = "floe_remote_stage_duration_seconds";
    out.header(NAME, Kind::Histogram, "Latency of the stages of a request.")?;
    for stage in &counts.stages {
        let label = ("stage", stage.stage.as_str());
        let mut total = 0;
        for (index, count) in stage.buckets.iter().enumerate() {
            total += count;
            let is_last = index + 1 == stage.buckets.len();
            let bound = if is_last { "+Inf".to_owned() } else { ((1_u64 << index) as f64 / 1e6).to_string() };
            out.sample_of(NAME, "_bucket", &[label, ("le", &bound)], total as f64)?;
        }
        out.sample_of(NAME, "_sum", &[label], stage.total_us as f64 / 1e6)?;
        out.sample_of(NAME, "_count", &[label], total as f64)?;
    }
    Ok(())
}

fn write_threads(out: &mut MountSamples<'_>, report: &Report) -> io::Result<()> {
    let threads = &report.threads;
    out.header("floe_thread_info", Kind::Gauge, "Threads with their CPU, and their requested and actual priority.")?;
    for thread in threads {
        let cpu = thread.cpu.map_or_else(String::new, |cpu| cpu.to_string());
        let labels = [
            ("thread", thread.name.as_str()),
            ("cpu", &cpu),
            ("asked", &thread.priority_asked),
            ("got", &thread.priority_got),
        ];
        out.sample("floe_thread_info", &labels, 1.0)?;
    }
    let tasks = threads.iter().map(|thread| (thread.name.as_str(), thread.tasks));
    out.family("floe_thread_tasks_total", "Completed tasks.", "thread", tasks)?;
    let yielded = threads.iter().map(|thread| (thread.name.as_str(), thread.yielded));
    out.family(
        "floe_thread_yields_total",
        "How often real-time priority was dropped after long work.",
        "thread",
        yielded,
    )?;
    let throttled = threads.iter().map(|thread| (thread.name.as_str(), thread.throttled));
    out.family("floe_thread_throttled_total", "How often real-time throttling stopped the thread.", "thread", throttled)
}

fn write_latency(out: &mut MountSamples<'_>, report: &Report) -> io::Result<()> {
    const NAME: &str = "floe_stage_duration_seconds";
    out.header(NAME, Kind::Histogram, "Latency of the stages of a read.")?;
    for latency in &report.latency {
        let stage = ("stage", latency.stage.as_str());
        for bucket in &latency.buckets {
            let bound = (bucket.up_to_ns as f64 / NS_PER_SECOND).to_string();
            out.sample_of(NAME, "_bucket", &[stage, ("le", &bound)], bucket.count as f64)?;
        }
        out.sample_of(NAME, "_bucket", &[stage, ("le", "+Inf")], latency.count as f64)?;
        out.sample_of(NAME, "_sum", &[stage], latency.total_ns as f64 / NS_PER_SECOND)?;
        out.sample_of(NAME, "_count", &[stage], latency.count as f64)?;
    }
    Ok(())
}

/// The media type of the format.
pub const MEDIA_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The type of a metric.
#[derive(Clone, Copy)]
pub enum Kind {
    /// A number that only grows.
    Counter,
    /// A number that also falls.
    Gauge,
    /// Counts of values in buckets.
    Histogram,
}

/// The labels of a sample: names and values.
pub(super) type Labels<'a> = &'a [(&'a str, &'a str)];

/// Metrics of any number of mounts.
///
/// The format requires that all samples of a metric follow each other, so they are collected by metric.
#[derive(Default)]
pub struct Exposition {
    families: Vec<Family>,
    /// The samples' names and labels, which may not repeat.
    series: HashSet<String>,
    /// The length of all samples, in bytes.
    samples_bytes: usize,
    samples_bytes_max: Option<usize>,
}

/// A metric with its samples.
struct Family {
    name: String,
    header: String,
    samples: Vec<u8>,
}

impl Exposition {
    /// Creates an empty exposition with a limit for the total length of its samples, in bytes.
    pub fn with_limit(samples_bytes_max: usize) -> Self {
        Self { samples_bytes_max: Some(samples_bytes_max), ..Self::default() }
    }

    /// Adds samples of a mount, which the labels identify.
    pub fn of_mount(&mut self, labels: Labels<'_>) -> MountSamples<'_> {
        let labels = labels.iter().map(|(label, text)| format!("{label}=\"{}\"", escaped(text)));
        MountSamples { exposition: self, labels: labels.collect::<Vec<_>>().join(",") }
    }

    /// The length of all samples, in bytes.
    pub fn samples_bytes(&self) -> usize {
        self.samples_bytes
    }

    /// Adds the metrics of other mounts.
    pub fn append(&mut self, other: Self) {
        self.samples_bytes += other.samples_bytes;
        for family in other.families {
            match self.families.iter_mut().find(|known| known.name == family.name) {
                Some(known) => known.samples.extend(family.samples),
                None => self.families.push(family),
            }
        }
    }

    /// Writes all metrics.
    ///
    /// # Errors
    /// The writer's errors.
    pub fn write(&self, writer: &mut dyn Write) -> io::Result<()> {
        self.families.iter().try_for_each(|family| {
            writer.write_all(family.header.as_bytes())?;
            writer.write_all(&family.samples)
        })
    }

    fn begin(&mut self, name: &str, kind: Kind, help: &str) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let header = format!("# HELP {name} {help}\n# TYPE {name} {kind}\n");
        self.families.push(Family { name: name.to_owned(), header, samples: Vec::new() });
    }
}

/// Adds samples of a mount, each with the labels of the mount.
pub struct MountSamples<'a> {
    exposition: &'a mut Exposition,
    labels: String,
}

impl MountSamples<'_> {
    /// A gauge with one sample.
    pub fn gauge(&mut self, name: &str, help: &str, value: f64) -> io::Result<()> {
        self.one(name, Kind::Gauge, help, &[], value)
    }

    /// A metric with one sample.
    pub fn one(&mut self, name: &str, kind: Kind, help: &str, labels: Labels<'_>, value: f64) -> io::Result<()> {
        self.header(name, kind, help)?;
        self.sample(name, labels, value)
    }

    /// A counter with a sample for each value of a label.
    pub fn family<'v>(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        samples: impl Iterator<Item = (&'v str, u64)>,
    ) -> io::Result<()> {
        self.header(name, Kind::Counter, help)?;
        samples.into_iter().try_for_each(|(value, count)| self.sample(name, &[(label, value)], count as f64))
    }

    /// Begins a metric; samples follow.
    pub fn header(&mut self, name: &str, kind: Kind, help: &str) -> io::Result<()> {
        if !self.exposition.families.iter().any(|family| family.name == name) {
            self.exposition.begin(name, kind, help);
        }
        Ok(())
    }

    /// A sample of a metric that has begun.
    ///
    /// # Errors
    /// The metric has not begun.
    pub fn sample(&mut self, name: &str, labels: Labels<'_>, value: f64) -> io::Result<()> {
        self.sample_of(name, "", labels, value)
    }

    /// A sample whose name is the metric's with a suffix, as in histograms.
    ///
    /// # Errors
    /// The metric has not begun, the sample is a duplicate, or the samples exceed the limit.
    pub(crate) fn sample_of(&mut self, name: &str, suffix: &str, labels: Labels<'_>, value: f64) -> io::Result<()> {
        let mut series = format!("{name}{suffix}{{{}", self.labels);
        for (label, text) in labels {
            series += &format!(",{label}=\"{}\"", escaped(text));
        }
        series.push('}');
        let Exposition { families, series: known, samples_bytes, samples_bytes_max } = &mut *self.exposition;
        let family = families.iter_mut().find(|family| family.name == name);
        let samples = &mut family.ok_or_else(|| io::Error::other(format!("{name} has no header")))?.samples;
        let before = samples.len();
        writeln!(samples, "{series} {value}")?;
        *samples_bytes += samples.len() - before;
        if samples_bytes_max.is_some_and(|limit| *samples_bytes > limit) {
            return Err(io::Error::other("too many samples"));
        }
        // Prometheus rejects all metrics if one sample occurs twice.
        if known.insert(series) { Ok(()) } else { Err(io::Error::other(format!("{name} has a duplicate sample"))) }
    }
}

/// The value of a label, with control characters, quotes, backslashes and line feeds escaped.
fn escaped(text: &str) -> String {
    harmless(text).replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
