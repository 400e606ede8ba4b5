//! Writes a report as text.

use std::{
    collections::BTreeMap,
    io::{self, Write},
};

use floe_image::{Metric, MetricKind, Shown};

use super::{
    MetricGroup,
    report::{LatencyReport, RemoteReport, Report, SandboxReport},
};
use crate::launch::LaunchReport;

/// Writes the report.
///
/// # Errors
/// The writer's errors.
pub fn write_text(writer: &mut dyn Write, report: &Report) -> io::Result<()> {
    let shown = |name: &str| Shown(name.as_bytes()).to_string();
    let image = &report.image;
    writeln!(
        writer,
        "{}: {} image {}, served by floe {} (process {}) for {}",
        shown(&report.mountpoint),
        image.format,
        shown(&image.path),
        shown(&report.version),
        report.process,
        for_people(report.uptime_seconds * 1e9)
    )?;
    if image.offset_bytes > 0 {
        writeln!(writer, "image        begins at byte {}", image.offset_bytes)?;
    }
    for device in &image.devices {
        writeln!(writer, "device       {}", shown(device))?;
    }
    if !report.front.kind.is_empty() {
        writeln!(writer, "front        {} ({})", shown(&report.front.kind), shown(&report.front.reason))?;
    }
    if !report.transport.kind.is_empty() {
        writeln!(writer, "transport    {} ({})", shown(&report.transport.kind), shown(&report.transport.reason))?;
    }
    write_launch(writer, &report.launch)?;
    if let Some(remote) = &report.remote {
        write_remote(writer, remote)?;
    }
    let options: Vec<_> = report.options.iter().map(|option| format!("{}={}", option.key, option.value)).collect();
    write_wrapped(writer, "options", &options)?;
    write_sandbox(writer, &report.sandbox)?;
    write_wrapped(writer, "requests", &counts(&report.requests))?;
    let faults = counts(&report.faults);
    write_wrapped(writer, "faults", if faults.is_empty() { &NONE } else { &faults })?;
    for group in &MetricGroup::of_report(&report.metrics) {
        write_metrics(writer, group)?;
    }
    write_threads(writer, report)?;
    write_latency(writer, report)
}

const NONE: [String; 0] = [];

/// The width of the names at the left.
const NAME_WIDTH: usize = 13;
/// The total width.
const WIDTH: usize = 110;

fn write_wrapped(writer: &mut dyn Write, name: &str, words: &[String]) -> io::Result<()> {
    write!(writer, "{name:<NAME_WIDTH$}")?;
    let mut width = NAME_WIDTH;
    for (index, word) in words.iter().enumerate() {
        if index > 0 && width + word.len() + 1 > WIDTH {
            write!(writer, "\n{:NAME_WIDTH$}", "")?;
            width = NAME_WIDTH;
        } else if index > 0 {
            write!(writer, " ")?;
            width += 1;
        }
        write!(writer, "{word}")?;
        width += word.len();
    }
    if words.is_empty() {
        write!(writer, "none")?;
    }
    writeln!(writer)
}

fn write_launch(writer: &mut dyn Write, launch: &LaunchReport) -> io::Result<()> {
    if ["", "none", "off"].contains(&launch.state.as_str()) && launch.reason.is_empty() {
        return Ok(());
    }
    let shown = |name: &str| Shown(name.as_bytes()).to_string();
    let reason = if launch.reason.is_empty() { String::new() } else { format!(": {}", shown(&launch.reason)) };
    writeln!(writer, "launch       {}{reason}", shown(&launch.state))?;
    if launch.steps == 0 {
        return Ok(());
    }
    writeln!(
        writer,
        "  profile    {} of {} steps; ahead of the launch: {} names, {} missing ones, {} failed, {} ranges of {}; {} steps \
         skipped, {} files outside",
        shown(&launch.source),
        launch.steps,
        launch.found_names,
        launch.missing_names,
        launch.failed_names,
        launch.ranges,
        bytes(launch.range_bytes),
        launch.skipped_steps,
        launch.outside_files
    )
}

fn write_remote(writer: &mut dyn Write, remote: &RemoteReport) -> io::Result<()> {
    let shown = |name: &str| Shown(name.as_bytes()).to_string();
    let verified =
        remote.verified_by.as_deref().map_or("unverified".to_owned(), |root| format!("verified by {}", shown(root)));
    let name = "remote";
    writeln!(writer, "{name:<NAME_WIDTH$}{}, {}, {verified}", shown(&remote.name), bytes(remote.len_bytes))?;
    let Some(image) = &remote.counts else {
        return writeln!(writer, "  fetched    nothing: the fetching process has ended");
    };
    let counts = &image.remote;
    let causes: Vec<_> = counts
        .causes
        .iter()
        .filter(|cause| cause.requests > 0)
        .map(|cause| format!("{} {} in {} requests", shown(&cause.cause), bytes(cause.bytes), cause.requests))
        .collect();
    let causes = if causes.is_empty() { "nothing yet".to_owned() } else { causes.join(", ") };
    writeln!(writer, "  fetched    {causes}")?;
    let ahead: Vec<_> = image
        .ahead
        .iter()
        .filter(|ahead| ahead.fetched_bytes > 0)
        .map(|ahead| {
            format!("{} {}, {} of it read", shown(&ahead.reason), bytes(ahead.fetched_bytes), bytes(ahead.read_bytes))
        })
        .collect();
    if !ahead.is_empty() {
        writeln!(writer, "  ahead      {}", ahead.join("; "))?;
    }
    if let Some(ms) = counts.outage_ms {
        writeln!(writer, "  server     unreachable for {}", for_people(ms as f64 * 1e6))?;
    }
    MetricGroup::of_remote(image).iter().try_for_each(|group| write_metrics(writer, group))
}

fn write_sandbox(writer: &mut dyn Write, sandbox: &SandboxReport) -> io::Result<()> {
    let SandboxReport { landlock, landlock_abi, seccomp, no_new_privs, capabilities } = sandbox;
    let version = if *landlock_abi > 0 { format!(" (ABI {landlock_abi})") } else { String::new() };
    let capabilities = if capabilities.is_empty() { "none".to_owned() } else { capabilities.join(" ") };
    let name = "sandbox";
    writeln!(
        writer,
        "{name:<NAME_WIDTH$}Landlock {landlock}{version}, seccomp {seccomp}, no_new_privs {no_new_privs}; capabilities: \
         {capabilities}"
    )
}

fn counts(counts: &BTreeMap<String, u64>) -> Vec<String> {
    counts.iter().filter(|(_, count)| **count > 0).map(|(name, count)| format!("{name}={count}")).collect()
}

/// Writes the metrics of a group, unless all are zero.
fn write_metrics(writer: &mut dyn Write, group: &MetricGroup) -> io::Result<()> {
    if group.rows().all(|(_, value)| value == 0) {
        return Ok(());
    }
    let count = group.rows().count();
    let words = group.rows().enumerate().map(|(index, (metric, value))| {
        let end = if index + 1 < count { "," } else { "" };
        in_words(metric, value) + end
    });
    write_wrapped(writer, group.title, &words.collect::<Vec<_>>())
}

/// A metric in words: `5 hits`, `12.0 MiB used at most`.
fn in_words(metric: &Metric, value: u64) -> String {
    let name = metric.name;
    let value = match metric.kind {
        MetricKind::Flag if value > 0 => String::new(),
        MetricKind::Flag => "not".to_owned(),
        _ if name.contains("bytes") => bytes(value),
        _ if name.ends_with("_ns") => for_people(value as f64),
        _ => value.to_string(),
    };
    let words = name.split('_').filter(|word| !["is", "bytes", "ns"].contains(word));
    let words = words.map(|word| if word == "max" { "at most" } else { word });
    [value.as_str()].into_iter().filter(|value| !value.is_empty()).chain(words).collect::<Vec<_>>().join(" ")
}

fn write_threads(writer: &mut dyn Write, report: &Report) -> io::Result<()> {
    writeln!(writer, "\nthread          cpu  asked     got       tasks      yielded  throttled")?;
    for thread in &report.threads {
        let cpu = thread.cpu.map_or_else(|| "-".to_owned(), |cpu| cpu.to_string());
        writeln!(
            writer,
            "{:<15} {cpu:>3}  {:<8}  {:<8}  {:<9}  {:<7}  {}",
            thread.name, thread.priority_asked, thread.priority_got, thread.tasks, thread.yielded, thread.throttled
        )?;
    }
    Ok(())
}

fn write_latency(writer: &mut dyn Write, report: &Report) -> io::Result<()> {
    writeln!(writer, "\nstage       count      mean      p50       p99       p99.9     max")?;
    for latency in &report.latency {
        let LatencyReport { stage, count, mean_ns, p50_ns, p99_ns, p999_ns, max_ns, .. } = latency;
        let times = [*mean_ns, *p50_ns as f64, *p99_ns as f64, *p999_ns as f64, *max_ns as f64];
        let times = times.map(|time_ns| if *count == 0 { "-".to_owned() } else { for_people(time_ns) });
        let [mean, p50, p99, p999, max] = &times;
        let stage = stage.replace('_', " ");
        writeln!(writer, "{stage:<10}  {count:<9}  {mean:<8}  {p50:<8}  {p99:<8}  {p999:<8}  {max}")?;
    }
    Ok(())
}

/// A time in nanoseconds, with three digits and a unit.
fn for_people(time_ns: f64) -> String {
    let (value, unit) = match time_ns {
        time if time < 1e3 => (time, "ns"),
        time if time < 1e6 => (time / 1e3, "µs"),
        time if time < 1e9 => (time / 1e6, "ms"),
        time if time < 120e9 => (time / 1e9, "s"),
        time if time < 7200e9 => (time / 60e9, "min"),
        time => (time / 3600e9, "h"),
    };
    format!("{value:.0$} {unit}", if value < 10.0 { 2 } else { usize::from(value < 100.0) })
}

/// A number of bytes, with three digits and a unit.
fn bytes(count: u64) -> String {
    let (mut value, mut unit) = (count as f64, "B");
    for larger in ["KiB", "MiB", "GiB", "TiB"] {
        if value < 1024.0 {
            break;
        }
        (value, unit) = (value / 1024.0, larger);
    }
    let digits = if unit == "B" || value >= 100.0 { 0 } else { 1 + usize::from(value < 10.0) };
    format!("{value:.digits$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_words() {
        for (name, kind, value, expected) in [
            ("hits", MetricKind::Counter, 5, "5 hits"),
            ("used_bytes_max", MetricKind::Gauge, 12 << 20, "12.0 MiB used at most"),
            ("ahead_ns", MetricKind::Counter, 1_500_000, "1.50 ms ahead"),
            ("is_locked", MetricKind::Flag, 1, "locked"),
            ("is_locked", MetricKind::Flag, 0, "not locked"),
        ] {
            assert_eq!(in_words(&Metric { name, help: "", kind }, value), expected);
        }
    }

    #[test]
    fn quantities_have_three_digits() {
        for (time_ns, expected) in [(0.0, "0.00 ns"), (999.0, "999 ns"), (12_345.0, "12.3 µs"), (90e9, "90.0 s")] {
            assert_eq!(for_people(time_ns), expected);
        }
        for (count, expected) in [(0, "0 B"), (1023, "1023 B"), (1536, "1.50 KiB"), (64 << 20, "64.0 MiB")] {
            assert_eq!(bytes(count), expected);
        }
    }
}
