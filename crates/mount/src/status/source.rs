//! Collects the report about a mount.

use std::{
    collections::BTreeMap,
    os::{fd::BorrowedFd, unix::net::UnixStream},
    path::PathBuf,
    process,
    sync::Arc,
    time::Instant,
};

use floe::{Image, Reader, remote::RemoteProcess};
use floe_engine::{Engine, Stage, WorkerStatus};
use floe_fuse::{FaultKind, RequestCounts, RequestKind, Unmounter};
use floe_sandbox::Enforced;
use floe_sync::{Mutex, MutexGuard};

use super::{
    MetricGroup,
    report::{BucketReport, ImageReport, LatencyReport, RemoteReport, Report, SCHEMA, SandboxReport, ThreadReport},
};
use crate::{
    control::{Answer, Question, Service, write_line},
    front::FrontReport,
    handover::{Giver, SealedInvocation},
    launch::Launches,
    options::Settings,
    transport::TransportReport,
};
use floe_image::json_name;

/// Why a mount is not handed over.
const CANNOT_HAND_OVER: &str = "only mounts with front=fuse and transport=dev can be taken over by another process: \
                                unmount it, and mount it again";

/// Why a mount of the service is not handed over.
const KEPT: &str = "it is served by the service: run floe upgrade without a directory, which replaces the service with all \
                    processes that serve its mounts";

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
    /// Whether the service keeps the mount, which replaces this process itself.
    pub(crate) is_kept: bool,
}

impl Service for Source {
    fn invocation(&self) -> Result<BorrowedFd<'_>, String> {
        if self.is_kept {
            return Err(KEPT.to_owned());
        }
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
            Question::Record(step) => match self.launches.record(step) {
                Ok(state) => Answer::Recording(state),
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
            _ if self.is_kept => write_line(&connection, &Answer::Refused(KEPT.to_owned())),
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
        let threads: Vec<_> = engine.worker_status().into_iter().map(thread_of).collect();
        let shown = |path: &PathBuf| json_name(path.as_os_str().as_encoded_bytes());
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
            requests: by_name(RequestKind::ALL.map(|kind| (kind.name(), self.requests.of(kind)))),
            faults: by_name(FaultKind::ALL.map(|kind| (kind.name(), self.requests.faults_of(kind)))),
            latency,
            metrics: MetricGroup::objects(
                &self.image.reader().volume().counters(),
                &self.reader.read_around_counters(),
            ),
        }
    }

    fn engine(&self) -> &Engine {
        self.image.reader().engine()
    }

    /// The current settings. Those of the engine may be less than was requested.
    fn settings(&self) -> MutexGuard<'_, Settings> {
        let mut settings = self.settings.lock();
        settings.open.engine = self.engine().options();
        settings.open.volume = self.image.reader().volume().options();
        settings
    }

    pub(crate) fn tune(&self, changes: &[String]) -> Result<(), String> {
        let mut settings = self.settings();
        let wanted = settings.tuned(changes)?;
        self.engine().tune(&wanted.open.engine).map_err(|error| error.to_string())?;
        self.image.reader().volume().tune(&wanted.open.volume);
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
