//! Writes a report in the text exposition format of Prometheus, version 0.0.4.

use std::io;

use floe::remote::{CauseCounts, ImageCounts};
use floe_image::MetricKind;

use super::{
    MetricGroup,
    exposition::{Kind, MountSamples},
    report::Report,
};

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
