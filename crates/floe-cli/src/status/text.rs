//! Writes a report as text.

use std::{
    collections::BTreeMap,
    io::{self, Write},
};

use super::report::{LatencyReport, MetadataCacheReport, RemoteReport, Report, SandboxReport};
use crate::launch::LaunchReport;
use floe_image::Shown;

/// Writes the report.
///
/// # Errors
/// The writer's errors.
pub(crate) fn write_text(writer: &mut dyn Write, report: &Report) -> io::Result<()> {
    let shown = |name: &str| Shown(name.as_bytes()).to_string();
    let Report { image, work, page_pool: pool, block_cache: blocks, read_around: around, lz4, .. } = report;
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
    writeln!(
        writer,
        "misses       {} outstanding now, {} at most; {} fetches of {}, {} decodes to {}",
        work.outstanding,
        work.outstanding_max,
        work.fetches,
        bytes(work.fetched_bytes),
        work.decodes,
        bytes(work.decoded_bytes)
    )?;
    writeln!(
        writer,
        "pages        {} in reserve ({}), {} in use, {} at most; runs: {} taken, {} missed, {} waited for, {} given \
         up; {} got ahead",
        pool.reserved_pages,
        if pool.is_locked { "locked" } else { "not locked" },
        pool.used_pages,
        pool.high_water_pages,
        pool.taken,
        pool.missed,
        pool.waited,
        pool.given_up,
        pool.ahead_pages
    )?;
    writeln!(
        writer,
        "blocks       {} of {}; {} hits, {} misses, {} joins, {} evictions",
        bytes(blocks.used_bytes),
        bytes(blocks.budget_bytes),
        blocks.hits,
        blocks.misses,
        blocks.joins,
        blocks.evictions
    )?;
    if blocks.spill_file_blocks > 0 {
        let (stored, hits) = (bytes(blocks.spill_file_bytes), blocks.spill_file_hits);
        writeln!(writer, "  spill file {} blocks of {stored}; {hits} hits", blocks.spill_file_blocks)?;
    }
    for (name, budget) in
        [("decoders", &report.decoders), ("reads", &report.read_results), ("  blocks", &report.read_blocks)]
    {
        writeln!(
            writer,
            "{name:<NAME_WIDTH$}{} of {}, {} at most; {} waits",
            bytes(budget.used_bytes),
            bytes(budget.budget_bytes),
            bytes(budget.used_bytes_max),
            budget.waits
        )?;
    }
    write_metadata_cache(writer, "metadata", &report.metadata_cache)?;
    write_metadata_cache(writer, "  as stored", &report.stored_metadata_cache)?;
    writeln!(
        writer,
        "read-around  {} blocks: {} used, {} wasted; {} given up, {} cancelled, {} dropped; {} to the page cache",
        around.ahead_blocks,
        around.used_blocks,
        around.wasted_blocks,
        around.given_up_blocks,
        around.cancelled_blocks,
        around.dropped,
        bytes(around.stored_bytes)
    )?;
    if lz4.decodes > 0 {
        writeln!(
            writer,
            "lz4          {} decodes, windows of {}; temporary pages: {} at most for one, {} in all",
            lz4.decodes,
            bytes(lz4.window_bytes_max),
            lz4.temporary_pages_max,
            lz4.temporary_pages
        )?;
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
    let outage = counts.outage_ms.map_or_else(
        || format!("{} outages so far", counts.outages),
        |ms| format!("unreachable for {}", for_people(ms as f64 * 1e6)),
    );
    writeln!(
        writer,
        "  server     {outage}; {} retries, {} asked to slow down, {} resolved again, {} wrong answers, {} failures",
        counts.retries, counts.throttled, counts.resolved_again, counts.wrong, counts.failed
    )?;
    writeln!(
        writer,
        "  cache      {} hits, {} misses, {} joined, {} chunks not stored; {} chunks did not verify",
        image.cache_hits, image.cache_misses, image.cache_joined, image.uncached_chunks, image.verification_failures
    )
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

fn write_metadata_cache(writer: &mut dyn Write, name: &str, cache: &MetadataCacheReport) -> io::Result<()> {
    let budget = cache.budget_bytes.map_or_else(String::new, |budget| format!(" of {}", bytes(budget)));
    writeln!(
        writer,
        "{name:<NAME_WIDTH$}{}{budget}; {} hits, {} misses, {} joins, {} evictions, {:.2} wake-ups for each release",
        bytes(cache.used_bytes),
        cache.hits,
        cache.misses,
        cache.joins,
        cache.evictions,
        cache.wakes_per_release
    )
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
    fn quantities_have_three_digits() {
        for (time_ns, expected) in [(0.0, "0.00 ns"), (999.0, "999 ns"), (12_345.0, "12.3 µs"), (90e9, "90.0 s")] {
            assert_eq!(for_people(time_ns), expected);
        }
        for (count, expected) in [(0, "0 B"), (1023, "1023 B"), (1536, "1.50 KiB"), (64 << 20, "64.0 MiB")] {
            assert_eq!(bytes(count), expected);
        }
    }
}
