//! Collects the report about a mount.

use std::{
    collections::BTreeMap,
    os::{fd::BorrowedFd, unix::net::UnixStream},
    path::PathBuf,
    process,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use floe::{Image, Reader, remote::RemoteProcess};
use floe_engine::{BudgetCounters, Engine, MetadataCacheCounters, Stage, WorkerStatus};
use floe_fuse::{FaultKind, RequestCounts, RequestKind, Unmounter};
use floe_sandbox::Enforced;

use super::report::{
    BlockCacheReport, BucketReport, BudgetReport, ImageReport, LatencyReport, Lz4Report, MetadataCacheReport,
    PagePoolReport, ReadAroundReport, RemoteReport, Report, SCHEMA, SandboxReport, ThreadReport, WorkReport,
};
use crate::{
    control::{Answer, Question, Service, write_line},
    front::FrontReport,
    handover::{Giver, SealedInvocation},
    launch::Launches,
    mount_options::Settings,
    transport::TransportReport,
};
use floe_image::json_name;

/// The size of a page of the pool, in bytes.
const PAGE_BYTES: u64 = 4096;

/// Why a mount is not handed over.
const CANNOT_HAND_OVER: &str = "only mounts with front=fuse and transport=dev can be taken over by another process: \
                                unmount it, and mount it again";

/// The upper bounds of the histograms, in nanoseconds.
const BOUNDS_NS: [u64; 22] = [
    1_000,
    2_000,
    5_000,
    10_000,
    20_000,
    50_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    20_000_000,
    50_000_000,
    100_000_000,
    200_000_000,
    500_000_000,
    1_000_000_000,
    2_000_000_000,
    5_000_000_000,
    10_000_000_000,
];

/// A running mount and the data for its report.
pub(crate) struct Source {
    pub(crate) image: Image,
    /// The reader that serves the mount.
    pub(crate) reader: Reader,
    pub(crate) path: PathBuf,
    pub(crate) devices: Vec<PathBuf>,
    pub(crate) mountpoint: PathBuf,
    pub(crate) device: (u32, u32),
    /// The settings at mount time, or after the last change.
    pub(crate) settings: Mutex<Settings>,
    pub(crate) front: FrontReport,
    pub(crate) transport: TransportReport,
    pub(crate) requests: RequestCounts,
    pub(crate) unmounter: Unmounter,
    pub(crate) launches: Arc<Launches>,
    pub(crate) started: Instant,
    pub(crate) enforced: Enforced,
    /// The process that fetches the image, if it is remote.
    pub(crate) remote: Option<Arc<RemoteProcess>>,
    /// How this process was started; `None` if there was no memory for it.
    pub(crate) invocation: Option<SealedInvocation>,
    /// `None` for mounts that cannot be handed over.
    pub(crate) giver: Option<Giver>,
}

impl Service for Source {
    fn invocation(&self) -> Result<BorrowedFd<'_>, String> {
        if self.giver.is_none() {
            return Err(CANNOT_HAND_OVER.to_owned());
        }
        let unknown = || "the process does not know how it was started".to_owned();
        self.invocation.as_ref().map(SealedInvocation::descriptor).ok_or_else(unknown)
    }

    fn answer(&self, question: Question) -> Answer {
        match question {
            Question::Status => Answer::Status(Box::new(self.report())),
            Question::Options => Answer::Options(self.settings().shown()),
            Question::Tune(changes) => match self.tune(&changes) {
                Ok(()) => Answer::Options(self.settings().shown()),
                Err(reason) => Answer::Refused(reason),
            },
            Question::Connection => Answer::Connection { is_alive: self.unmounter.is_connected() },
            Question::Invocation | Question::HandOver | Question::Stop | Question::Serves => {
                Answer::Refused("not now".to_owned())
            }
        }
    }

    fn hand_over(&self, connection: UnixStream) {
        // If the other process fails, this process continues to serve, and the other process reports the error.
        let _ = match &self.giver {
            Some(giver) => giver.give(&connection),
            None => write_line(&connection, &Answer::Refused(CANNOT_HAND_OVER.to_owned())),
        };
    }
}

impl Source {
    /// The current report.
    pub(crate) fn report(&self) -> Report {
        let engine = self.engine();
        // Read before the counts, so that no bucket exceeds its count.
        let latency = Stage::ALL.iter().map(|stage| latency_of(engine, *stage)).collect();
        let counters = engine.counters();
        let around = self.reader.read_around_counters();
        let threads: Vec<_> = engine.worker_status().into_iter().map(thread_of).collect();
        let shown = |path: &PathBuf| json_name(path.as_os_str().as_encoded_bytes());
        let pages = counters.pages;
        Report {
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            process: process::id(),
            uptime_seconds: self.started.elapsed().as_secs_f64(),
            mountpoint: shown(&self.mountpoint),
            device: format!("{}:{}", self.device.0, self.device.1),
            image: ImageReport {
                path: shown(&self.path),
                format: self.image.format().to_string(),
                offset_bytes: self.image.offset(),
                devices: self.devices.iter().map(shown).collect(),
            },
            front: self.front.clone(),
            transport: self.transport.clone(),
            launch: self.launches.report(),
            options: self.settings().shown(),
            remote: self.remote.as_deref().map(remote_of),
            sandbox: SandboxReport {
                landlock: self.enforced.landlock.to_string(),
                landlock_abi: self.enforced.landlock_abi,
                seccomp: self.enforced.seccomp.to_string(),
                no_new_privs: self.enforced.no_new_privs.to_string(),
                capabilities: self.enforced.capabilities.clone(),
            },
            real_time_throttled: threads.iter().map(|thread| thread.throttled).sum(),
            threads,
            page_pool: PagePoolReport {
                reserved_pages: pages.reserved_pages,
                is_locked: pages.locked,
                used_pages: pages.used_pages,
                high_water_pages: pages.high_water_pages,
                taken: pages.taken,
                missed: pages.missed,
                waited: pages.waited,
                given_up: pages.given_up,
                ahead_pages: pages.ahead_pages,
                ahead_ns: pages.ahead_ns,
            },
            block_cache: BlockCacheReport {
                budget_bytes: pages.cache_pages_max * PAGE_BYTES,
                used_bytes: pages.cache_pages * PAGE_BYTES,
                hits: counters.blocks.hits,
                misses: counters.blocks.misses,
                joins: counters.blocks.joins,
                evictions: counters.blocks.evictions,
                spill_file_blocks: counters.spill_file.stored_blocks,
                spill_file_bytes: counters.spill_file.stored_bytes,
                spill_file_hits: counters.spill_file.hits,
            },
            decoders: budget_of(counters.decoders),
            read_results: budget_of(counters.admission),
            read_blocks: budget_of(counters.decoding),
            metadata_cache: metadata_cache_of(&counters.decoded_metadata),
            stored_metadata_cache: metadata_cache_of(&counters.stored_metadata),
            read_around: ReadAroundReport {
                ahead_blocks: around.ahead_blocks,
                used_blocks: around.used_blocks,
                wasted_blocks: around.wasted_blocks,
                given_up_blocks: around.given_up,
                cancelled_blocks: around.cancelled,
                dropped: around.dropped,
                stored_bytes: around.stored_bytes,
            },
            lz4: Lz4Report {
                decodes: counters.windows.decodes,
                window_bytes_max: counters.windows.window_bytes_max,
                temporary_pages: counters.windows.pages,
                temporary_pages_max: counters.windows.pages_max,
            },
            work: WorkReport {
                outstanding: counters.outstanding,
                outstanding_max: counters.outstanding_max,
                fetches: counters.fetches,
                fetched_bytes: counters.fetched_bytes,
                decodes: counters.decodes,
                decoded_bytes: counters.decoded_bytes,
            },
            requests: by_name(RequestKind::ALL.map(|kind| (kind.name(), self.requests.of(kind)))),
            faults: by_name(FaultKind::ALL.map(|kind| (kind.name(), self.requests.faults_of(kind)))),
            latency,
        }
    }

    fn engine(&self) -> &Engine {
        self.image.reader().engine()
    }

    /// The current settings. Those of the engine may be less than was requested.
    fn settings(&self) -> MutexGuard<'_, Settings> {
        let mut settings = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        settings.open.engine = self.engine().options();
        settings
    }

    fn tune(&self, changes: &[String]) -> Result<(), String> {
        let mut settings = self.settings();
        let wanted = settings.tuned(changes)?;
        self.engine().tune(&wanted.open.engine).map_err(|error| error.to_string())?;
        *settings = wanted;
        if let Some(giver) = &self.giver {
            giver.note_tuned(changes);
        }
        Ok(())
    }
}

fn remote_of(process: &RemoteProcess) -> RemoteReport {
    let about = process.about();
    // If the fetching process has ended, reads report it.
    let counts = process.counts().ok();
    RemoteReport { name: about.name.clone(), len_bytes: about.len, verified_by: about.verified_by.clone(), counts }
}

fn by_name<const COUNT: usize>(counts: [(&str, u64); COUNT]) -> BTreeMap<String, u64> {
    counts.into_iter().map(|(name, count)| (name.to_owned(), count)).collect()
}

fn thread_of(worker: WorkerStatus) -> ThreadReport {
    let WorkerStatus { name, cpu, asked, got, tasks, yielded, throttled } = worker;
    ThreadReport {
        name,
        cpu,
        priority_asked: asked.to_string(),
        priority_got: got.to_string(),
        tasks,
        yielded,
        throttled,
    }
}

fn budget_of(counters: BudgetCounters) -> BudgetReport {
    let BudgetCounters { budget_bytes, used_bytes, used_bytes_max, waits } = counters;
    BudgetReport { budget_bytes, used_bytes, used_bytes_max, waits }
}

fn metadata_cache_of(counters: &MetadataCacheCounters) -> MetadataCacheReport {
    let MetadataCacheCounters { hits, misses, waits, wakes, releases, evictions, weight, weight_max, .. } = *counters;
    MetadataCacheReport {
        budget_bytes: Some(weight_max).filter(|budget| *budget > 0),
        used_bytes: weight,
        hits,
        misses,
        joins: waits,
        evictions,
        releases,
        wakes,
        wakes_per_release: if releases == 0 { 0.0 } else { wakes as f64 / releases as f64 },
    }
}

fn latency_of(engine: &Engine, stage: Stage) -> LatencyReport {
    let counts = engine.latency_counts(stage, &BOUNDS_NS);
    let summary = engine.latency(stage);
    LatencyReport {
        stage: stage.name().replace(' ', "_"),
        count: summary.count,
        total_ns: summary.total_ns,
        mean_ns: summary.mean_ns,
        p50_ns: summary.p50_ns,
        p99_ns: summary.p99_ns,
        p999_ns: summary.p999_ns,
        max_ns: summary.max_ns,
        buckets: BOUNDS_NS.iter().zip(counts).map(|(&up_to_ns, count)| BucketReport { up_to_ns, count }).collect(),
    }
}
