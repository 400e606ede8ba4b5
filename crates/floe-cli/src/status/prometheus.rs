//! Writes a report in the text exposition format of Prometheus, version 0.0.4.

use std::io;

use floe::remote::{CauseCounts, ImageCounts};

use super::{
    exposition::{Kind, MountSamples},
    report::{MetadataCacheReport, Report},
};

/// Nanoseconds in a second.
const NS_PER_SECOND: f64 = 1e9;

/// Adds the report of a mount.
///
/// # Errors
/// The report has a duplicate sample, or the samples exceed the limit.
pub(crate) fn add_report(out: &mut MountSamples<'_>, report: &Report) -> io::Result<()> {
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
    out.family("floe_remote_requests_total", "Answered requests to the image's server.", "cause", requests)?;
    let bytes = by_cause(|cause| cause.bytes);
    out.family("floe_remote_bytes_total", "Bytes in these answers.", "cause", bytes)?;
    for (name, help, count) in [
        ("floe_remote_retries_total", "Repeated requests.", counts.retries),
        ("floe_remote_throttled_total", "Answers that asked for fewer requests.", counts.throttled),
        ("floe_remote_resolved_again_total", "How often credentials or redirects were renewed.", counts.resolved_again),
        ("floe_remote_preempted_total", "Background requests cancelled in favour of demand.", counts.preempted),
        ("floe_remote_wrong_answers_total", "Answers that did not match the request.", counts.wrong),
        ("floe_remote_failures_total", "Fetches that failed after all retries.", counts.failed),
        ("floe_remote_outages_total", "How often the server became unreachable.", counts.outages),
        ("floe_remote_cache_hits_total", "Reads of cached chunks.", image.cache_hits),
        ("floe_remote_cache_misses_total", "Reads of chunks that had to be fetched.", image.cache_misses),
        ("floe_remote_cache_joined_total", "Reads that joined another fetch.", image.cache_joined),
        ("floe_remote_verification_failures_total", "Chunks that failed verification.", image.verification_failures),
        ("floe_remote_uncached_chunks_total", "Chunks that were not stored.", image.uncached_chunks),
    ] {
        out.one(name, Kind::Counter, help, &[], count as f64)?;
    }
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

fn write_work(out: &mut MountSamples<'_>, report: &Report) -> io::Result<()> {
    let (work, around, lz4) = (&report.work, &report.read_around, &report.lz4);
    out.gauge("floe_outstanding_misses", "Requests in progress that missed the caches.", work.outstanding as f64)?;
    out.gauge("floe_outstanding_misses_max", "The maximum of them at one time.", work.outstanding_max as f64)?;
    for (name, help, count) in [
        ("floe_fetches_total", "Reads of file data from the image.", work.fetches),
        ("floe_fetched_bytes_total", "Bytes fetched by these reads.", work.fetched_bytes),
        ("floe_decodes_total", "Blocks of file data decoded.", work.decodes),
        ("floe_decoded_bytes_total", "Bytes of the decoded blocks.", work.decoded_bytes),
        ("floe_read_around_blocks_total", "Blocks decoded ahead of demand.", around.ahead_blocks),
        ("floe_read_around_used_blocks_total", "Blocks decoded ahead that were used.", around.used_blocks),
        (
            "floe_read_around_wasted_blocks_total",
            "Blocks decoded ahead that were evicted unused.",
            around.wasted_blocks,
        ),
        (
            "floe_read_around_given_up_blocks_total",
            "Blocks not decoded because memory was short.",
            around.given_up_blocks,
        ),
        (
            "floe_read_around_cancelled_blocks_total",
            "Blocks not decoded because the reader had passed them.",
            around.cancelled_blocks,
        ),
        ("floe_read_around_dropped_total", "Prefetch tasks dropped because too many were waiting.", around.dropped),
        ("floe_read_around_stored_bytes_total", "Bytes pushed into the page cache.", around.stored_bytes),
        ("floe_lz4_decodes_total", "LZ4 blocks decoded.", lz4.decodes),
        (
            "floe_lz4_temporary_pages_total",
            "Pages that these decodes needed besides their output.",
            lz4.temporary_pages,
        ),
    ] {
        out.one(name, Kind::Counter, help, &[], count as f64)?;
    }
    out.gauge(
        "floe_lz4_temporary_pages_max",
        "The maximum number of pages for one decode.",
        lz4.temporary_pages_max as f64,
    )?;
    out.gauge("floe_lz4_window_bytes", "The largest LZ4 window seen.", lz4.window_bytes_max as f64)
}

fn write_pages(out: &mut MountSamples<'_>, report: &Report) -> io::Result<()> {
    let pool = &report.page_pool;
    for (name, help, value) in [
        ("floe_page_pool_reserved_pages", "Pages of 4 KiB held in reserve.", pool.reserved_pages),
        ("floe_page_pool_locked", "Whether the reserve is locked in memory.", pool.is_locked.into()),
        ("floe_page_pool_used_pages", "Pages of the reserve in use.", pool.used_pages),
        ("floe_page_pool_high_water_pages", "The maximum in use at one time.", pool.high_water_pages),
    ] {
        out.gauge(name, help, value as f64)?;
    }
    for (name, help, count) in [
        ("floe_page_pool_taken_total", "Runs taken from the reserve.", pool.taken),
        ("floe_page_pool_missed_total", "Runs that the reserve had no room for.", pool.missed),
        ("floe_page_pool_waited_total", "Runs that the system allocated slowly.", pool.waited),
        ("floe_page_pool_given_up_total", "Runs that best-effort work gave up.", pool.given_up),
        ("floe_page_pool_ahead_pages_total", "Pages allocated for the block cache ahead of reads.", pool.ahead_pages),
    ] {
        out.one(name, Kind::Counter, help, &[], count as f64)?;
    }
    Ok(())
}

fn write_caches(out: &mut MountSamples<'_>, report: &Report) -> io::Result<()> {
    let blocks = &report.block_cache;
    out.gauge("floe_block_cache_budget_bytes", "The limit of cached blocks, in bytes.", blocks.budget_bytes as f64)?;
    out.gauge("floe_block_cache_used_bytes", "The size of cached blocks, in bytes.", blocks.used_bytes as f64)?;
    for (name, help, count) in [
        ("floe_block_cache_hits_total", "Lookups that found the block.", blocks.hits),
        ("floe_block_cache_misses_total", "Lookups that had to decode the block.", blocks.misses),
        ("floe_block_cache_joins_total", "Lookups that joined another decode.", blocks.joins),
        ("floe_block_cache_evictions_total", "Blocks evicted.", blocks.evictions),
        ("floe_spill_file_blocks_total", "Blocks written to the spill file.", blocks.spill_file_blocks),
        ("floe_spill_file_bytes_total", "Decoded bytes of these blocks.", blocks.spill_file_bytes),
        ("floe_spill_file_hits_total", "Reads that found their block in the spill file.", blocks.spill_file_hits),
    ] {
        out.one(name, Kind::Counter, help, &[], count as f64)?;
    }
    for (name, of, budget) in [
        ("decoders", "Decoders' state", &report.decoders),
        ("read_results", "Output of waiting reads", &report.read_results),
        ("read_blocks", "Blocks of waiting reads", &report.read_blocks),
    ] {
        for (what, help, value) in [
            ("budget_bytes", "may take.", budget.budget_bytes),
            ("used_bytes", "take now.", budget.used_bytes),
            ("used_bytes_max", "took at most at one time.", budget.used_bytes_max),
        ] {
            out.gauge(&format!("floe_{name}_{what}"), &format!("{of}: bytes they {help}"), value as f64)?;
        }
        out.one(
            &format!("floe_{name}_waits_total"),
            Kind::Counter,
            "Waits for this memory.",
            &[],
            budget.waits as f64,
        )?;
    }
    let caches = [("decoded", &report.metadata_cache), ("stored", &report.stored_metadata_cache)];
    let mut of_both = |name, kind, help, value: fn(&MetadataCacheReport) -> u64| {
        out.header(name, kind, help)?;
        caches.iter().try_for_each(|(cache, report)| out.sample(name, &[("cache", cache)], value(report) as f64))
    };
    of_both("floe_metadata_cache_budget_bytes", Kind::Gauge, "The limit of cached metadata, in bytes.", |cache| {
        cache.budget_bytes.unwrap_or(0)
    })?;
    of_both("floe_metadata_cache_used_bytes", Kind::Gauge, "The size of cached metadata, in bytes.", |cache| {
        cache.used_bytes
    })?;
    of_both("floe_metadata_cache_hits_total", Kind::Counter, "Lookups that found the metadata.", |cache| cache.hits)?;
    of_both(
        "floe_metadata_cache_misses_total",
        Kind::Counter,
        "Lookups that had to fetch or decode the metadata.",
        |cache| cache.misses,
    )?;
    of_both("floe_metadata_cache_joins_total", Kind::Counter, "Lookups that waited for another thread.", |cache| {
        cache.joins
    })?;
    of_both("floe_metadata_cache_evictions_total", Kind::Counter, "Values evicted.", |cache| cache.evictions)?;
    of_both("floe_metadata_cache_releases_total", Kind::Counter, "Values released by threads.", |cache| {
        cache.releases
    })?;
    of_both("floe_metadata_cache_wakes_total", Kind::Counter, "Threads woken by releases.", |cache| cache.wakes)
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
