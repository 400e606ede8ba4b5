//! A report as Prometheus scrapes it: the text exposition format, version 0.0.4.

use std::io;

use floe::remote::{CauseCounts, ImageCounts};

use super::{
    exposition::{Exposition, Kind, MountSamples},
    report::{MetadataCacheReport, Report},
};

/// Nanoseconds in a second.
const NS_PER_SECOND: f64 = 1e9;

/// Adds the report of a mount.
///
/// # Errors
/// Memory is exhausted.
pub(crate) fn add_report(exposition: &mut Exposition, report: &Report) -> io::Result<()> {
    let out = &mut exposition.of_mount(&report.mountpoint, &report.device);
    let version =
        [("version", report.version.as_str()), ("image", &report.image.path), ("format", &report.image.format)];
    out.one("floe_mount_info", Kind::Gauge, "The mount and what serves it.", &version, 1.0)?;
    out.gauge("floe_uptime_seconds", "Time since the image was mounted.", report.uptime_seconds)?;
    let sandbox = &report.sandbox;
    let mechanisms =
        [("landlock", &sandbox.landlock), ("seccomp", &sandbox.seccomp), ("no_new_privs", &sandbox.no_new_privs)];
    let mechanisms = mechanisms.map(|(name, state)| (name, u64::from(state == "enforced")));
    out.header("floe_sandbox_enforced", Kind::Gauge, "Whether the kernel enforces it on the process.")?;
    for (name, is_enforced) in mechanisms {
        out.sample("floe_sandbox_enforced", &[("mechanism", name)], is_enforced as f64)?;
    }
    let kinds = report.requests.iter().map(|(kind, count)| (kind.as_str(), *count));
    out.family("floe_requests_total", "Requests of the kernel.", "kind", kinds)?;
    let reasons = report.faults.iter().map(|(reason, count)| (reason.as_str(), *count));
    out.family("floe_request_faults_total", "Requests that got an error they did not ask for.", "reason", reasons)?;
    if let Some(counts) = report.remote.as_ref().and_then(|remote| remote.counts.as_ref()) {
        write_remote(out, counts)?;
    }
    write_work(out, report)?;
    write_pages(out, report)?;
    write_caches(out, report)?;
    write_threads(out, report)?;
    write_latency(out, report)
}

fn write_remote(out: &mut MountSamples<'_>, image: &ImageCounts) -> io::Result<()> {
    let counts = &image.remote;
    let by_cause =
        |count: fn(&CauseCounts) -> u64| counts.causes.iter().map(move |cause| (cause.cause.as_str(), count(cause)));
    let requests = by_cause(|cause| cause.requests);
    out.family("floe_remote_requests_total", "Requests to the image's server that were answered.", "cause", requests)?;
    let bytes = by_cause(|cause| cause.bytes);
    out.family("floe_remote_bytes_total", "Bytes that they brought.", "cause", bytes)?;
    for (name, help, count) in [
        ("floe_remote_retries_total", "Requests that were sent again.", counts.retries),
        ("floe_remote_throttled_total", "Answers that asked for fewer requests.", counts.throttled),
        (
            "floe_remote_resolved_again_total",
            "Times that credentials or redirects were had again.",
            counts.resolved_again,
        ),
        ("floe_remote_made_way_total", "Background requests that made way for demand.", counts.made_way),
        ("floe_remote_wrong_answers_total", "Answers with other bytes than were asked for.", counts.wrong),
        ("floe_remote_failures_total", "Fetches that failed in the end.", counts.failed),
        ("floe_remote_outages_total", "Times that the server went out of reach.", counts.outages),
        ("floe_remote_cache_hits_total", "Reads of chunks that the cache had.", image.cache_hits),
        ("floe_remote_cache_misses_total", "Reads of chunks that had to be fetched.", image.cache_misses),
        ("floe_remote_cache_joined_total", "Reads that waited for a fetch of somebody else.", image.cache_joined),
        ("floe_remote_verification_failures_total", "Chunks that did not verify.", image.verification_failures),
        ("floe_remote_uncached_chunks_total", "Chunks that were not stored.", image.uncached_chunks),
    ] {
        out.one(name, Kind::Counter, help, &[], count as f64)?;
    }
    let outage_s = counts.outage_ms.unwrap_or(0) as f64 / 1e3;
    out.gauge("floe_remote_outage_seconds", "How long the server has been out of reach; 0: it is not.", outage_s)?;
    const NAME: &str = "floe_remote_stage_duration_seconds";
    out.header(NAME, Kind::Histogram, "How long the stages of a request take.")?;
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

fn write_work(out: &mut MountSamples<'_>, report: &Report) -> io::Result<()> {
    let (work, around, lz4) = (&report.work, &report.read_around, &report.lz4);
    out.gauge("floe_outstanding_misses", "Requests under way whose bytes were not at hand.", work.outstanding as f64)?;
    out.gauge("floe_outstanding_misses_max", "The most of them at one time.", work.outstanding_max as f64)?;
    for (name, help, count) in [
        ("floe_fetches_total", "Reads of file data from the image.", work.fetches),
        ("floe_fetched_bytes_total", "Bytes that they brought.", work.fetched_bytes),
        ("floe_decodes_total", "Blocks of file data decoded.", work.decodes),
        ("floe_decoded_bytes_total", "Bytes that they gave.", work.decoded_bytes),
        ("floe_read_around_blocks_total", "Blocks decoded before anybody asked for them.", around.ahead_blocks),
        ("floe_read_around_used_blocks_total", "Of them, those that somebody asked for.", around.used_blocks),
        ("floe_read_around_wasted_blocks_total", "Of them, those that nobody asked for.", around.wasted_blocks),
        ("floe_read_around_given_up_blocks_total", "Blocks left for want of memory.", around.given_up_blocks),
        ("floe_read_around_cancelled_blocks_total", "Blocks left since the reader went on.", around.cancelled_blocks),
        ("floe_read_around_dropped_total", "Pieces of work left because of too many.", around.dropped),
        ("floe_read_around_stored_bytes_total", "Bytes given to the page cache.", around.stored_bytes),
        ("floe_lz4_decodes_total", "LZ4 blocks decoded.", lz4.decodes),
        ("floe_lz4_temporary_pages_total", "Pages that they needed beside their output.", lz4.temporary_pages),
    ] {
        out.one(name, Kind::Counter, help, &[], count as f64)?;
    }
    out.gauge("floe_lz4_temporary_pages_max", "The most that one needed.", lz4.temporary_pages_max as f64)?;
    out.gauge("floe_lz4_window_bytes", "The largest LZ4 window seen.", lz4.window_bytes_max as f64)
}

fn write_pages(out: &mut MountSamples<'_>, report: &Report) -> io::Result<()> {
    let pool = &report.page_pool;
    for (name, help, value) in [
        ("floe_page_pool_reserved_pages", "Pages of 4 KiB held in reserve.", pool.reserved_pages),
        ("floe_page_pool_locked", "Whether the reserve is locked in memory.", pool.is_locked.into()),
        ("floe_page_pool_used_pages", "Pages of the reserve in use.", pool.used_pages),
        ("floe_page_pool_high_water_pages", "The most in use at one time.", pool.high_water_pages),
    ] {
        out.gauge(name, help, value as f64)?;
    }
    for (name, help, count) in [
        ("floe_page_pool_taken_total", "Runs taken from the reserve.", pool.taken),
        ("floe_page_pool_missed_total", "Runs that the reserve had no room for.", pool.missed),
        ("floe_page_pool_waited_total", "Runs for which the system let a thread wait.", pool.waited),
        ("floe_page_pool_given_up_total", "Runs not worth waiting for.", pool.given_up),
        ("floe_page_pool_ahead_pages_total", "Pages that the block cache got before reads.", pool.ahead_pages),
    ] {
        out.one(name, Kind::Counter, help, &[], count as f64)?;
    }
    Ok(())
}

fn write_caches(out: &mut MountSamples<'_>, report: &Report) -> io::Result<()> {
    let blocks = &report.block_cache;
    out.gauge("floe_block_cache_budget_bytes", "What cached blocks may take.", blocks.budget_bytes as f64)?;
    out.gauge("floe_block_cache_used_bytes", "What they take.", blocks.used_bytes as f64)?;
    for (name, help, count) in [
        ("floe_block_cache_hits_total", "Look-ups that found the block.", blocks.hits),
        ("floe_block_cache_misses_total", "Look-ups that had to decode it.", blocks.misses),
        ("floe_block_cache_joins_total", "Look-ups that joined a decode.", blocks.joins),
        ("floe_block_cache_evictions_total", "Blocks dropped for the budget.", blocks.evictions),
        ("floe_spill_file_blocks_total", "Blocks that went into the spill file.", blocks.spill_file_blocks),
        ("floe_spill_file_bytes_total", "Their decoded bytes.", blocks.spill_file_bytes),
        ("floe_spill_file_hits_total", "Reads that found their block there.", blocks.spill_file_hits),
    ] {
        out.one(name, Kind::Counter, help, &[], count as f64)?;
    }
    for (name, of, budget) in [
        ("decoders", "Decoders' state", &report.decoders),
        ("read_results", "What waiting reads give", &report.read_results),
        ("read_blocks", "Blocks of waiting reads", &report.read_blocks),
    ] {
        for (what, help, value) in [
            ("budget_bytes", "may take.", budget.budget_bytes),
            ("used_bytes", "take now.", budget.used_bytes),
            ("used_bytes_max", "took at most.", budget.used_bytes_max),
        ] {
            out.gauge(&format!("floe_{name}_{what}"), &format!("{of}: bytes they {help}"), value as f64)?;
        }
        out.one(
            &format!("floe_{name}_waits_total"),
            Kind::Counter,
            "Waits for that memory.",
            &[],
            budget.waits as f64,
        )?;
    }
    let caches = [("decoded", &report.metadata_cache), ("stored", &report.stored_metadata_cache)];
    let mut of_both = |name, kind, help, value: fn(&MetadataCacheReport) -> u64| {
        out.header(name, kind, help)?;
        caches.iter().try_for_each(|(cache, report)| out.sample(name, &[("cache", cache)], value(report) as f64))
    };
    of_both("floe_metadata_cache_budget_bytes", Kind::Gauge, "What cached metadata may take.", |cache| {
        cache.budget_bytes.unwrap_or(0)
    })?;
    of_both("floe_metadata_cache_used_bytes", Kind::Gauge, "What it takes.", |cache| cache.used_bytes)?;
    of_both("floe_metadata_cache_hits_total", Kind::Counter, "Look-ups that found it.", |cache| cache.hits)?;
    of_both("floe_metadata_cache_misses_total", Kind::Counter, "Look-ups that had to make it.", |cache| cache.misses)?;
    of_both("floe_metadata_cache_joins_total", Kind::Counter, "Look-ups that slept for it.", |cache| cache.joins)?;
    of_both("floe_metadata_cache_evictions_total", Kind::Counter, "Dropped for the budget.", |cache| cache.evictions)?;
    of_both("floe_metadata_cache_releases_total", Kind::Counter, "Values that a thread let go of.", |cache| {
        cache.releases
    })?;
    of_both("floe_metadata_cache_wakes_total", Kind::Counter, "Threads woken by that.", |cache| cache.wakes)
}

fn write_threads(out: &mut MountSamples<'_>, report: &Report) -> io::Result<()> {
    let threads = &report.threads;
    out.header("floe_thread_info", Kind::Gauge, "Threads, their CPU, and the priority they asked for and got.")?;
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
    out.family("floe_thread_tasks_total", "Pieces of work done.", "thread", tasks)?;
    let yielded = threads.iter().map(|thread| (thread.name.as_str(), thread.yielded));
    out.family("floe_thread_yields_total", "Real-time priority given up after long work.", "thread", yielded)?;
    let throttled = threads.iter().map(|thread| (thread.name.as_str(), thread.throttled));
    out.family("floe_thread_throttled_total", "Real-time throttling seen.", "thread", throttled)
}

fn write_latency(out: &mut MountSamples<'_>, report: &Report) -> io::Result<()> {
    const NAME: &str = "floe_stage_duration_seconds";
    out.header(NAME, Kind::Histogram, "How long the stages of a read take.")?;
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
