//! Counters and latencies of requests.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

use floe_image::metrics;
use floe_remote_cache::Cause;
use serde::{Deserialize, Serialize};

/// The number of buckets of a histogram: up to 1 µs, 2 µs, 4 µs, … about 36 minutes, and more.
const BUCKET_COUNT: usize = 32;

/// A stage of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// Finding the location of the bytes: tokens, redirects, signatures.
    Resolve,
    /// Waiting for a slot among the requests to the host.
    Queue,
    /// From the request to the first byte of the answer.
    FirstByte,
    /// From the first byte to the last.
    Transfer,
}

/// An event that is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    /// A request was repeated.
    Retried,
    /// An answer asked for a lower rate.
    Throttled,
    /// Credentials, signatures or redirects were renewed.
    ResolvedAgain,
    /// A background request was cancelled in favour of demand.
    Preempted,
    /// An answer did not match the request.
    Wrong,
    /// A fetch failed after all retries.
    Failed,
}

/// Counters of one remote image. They only grow, except for the outage.
#[derive(Debug)]
pub(crate) struct Counters {
    began: Instant,
    requests: [AtomicU64; Cause::ALL.len()],
    bytes: [AtomicU64; Cause::ALL.len()],
    events: [AtomicU64; 6],
    /// The start of the current outage, in nanoseconds since `began` plus one; zero without an outage.
    outage_since_ns: AtomicU64,
    outages: AtomicU64,
    stages: [[AtomicU64; BUCKET_COUNT]; 4],
    stages_us: [AtomicU64; 4],
}

metrics! {
    /// A snapshot of the counters of a remote image.
    #[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
    pub struct RemoteCounts {
        /// Repeated requests.
        pub retries: u64 = Counter,
        /// Answers that asked for a lower rate.
        pub throttled: u64 = Counter,
        /// How often credentials, signatures or redirects were renewed.
        pub resolved_again: u64 = Counter,
        /// Background requests that were cancelled in favour of demand.
        pub preempted: u64 = Counter,
        /// Answers that did not match the request.
        pub wrong: u64 = Counter as wrong_answers,
        /// Fetches that failed after all retries.
        pub failed: u64 = Counter as failures,
        /// How often the server became unreachable.
        pub outages: u64 = Counter,
        ;
        /// Requests and bytes by cause, in the order of [`Cause::ALL`].
        pub causes: Vec<CauseCounts>,
        /// The duration of the current outage, in milliseconds; `None` without an outage.
        pub outage_ms: Option<u64>,
        /// The latency of each stage.
        pub stages: Vec<StageCounts>,
    }
}

/// Requests and bytes of one cause.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CauseCounts {
    /// The cause's name.
    pub cause: String,
    /// Answered requests.
    pub requests: u64,
    /// Received bytes.
    pub bytes: u64,
}

/// The latency of one stage.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StageCounts {
    /// The stage's name.
    pub stage: String,
    /// How many times the stage took up to 1 µs, 2 µs, 4 µs, …; the last bucket counts everything above.
    pub buckets: Vec<u64>,
    /// The total time, in microseconds.
    pub total_us: u64,
}

impl Counters {
    pub(crate) fn new() -> Self {
        Self {
            began: Instant::now(),
            requests: Default::default(),
            bytes: Default::default(),
            events: Default::default(),
            outage_since_ns: AtomicU64::new(0),
            outages: AtomicU64::new(0),
            stages: Default::default(),
            stages_us: Default::default(),
        }
    }

    pub(crate) fn fetched(&self, cause: Cause, bytes: u64) {
        self.requests[cause.index()].fetch_add(1, Relaxed);
        self.bytes[cause.index()].fetch_add(bytes, Relaxed);
        self.outage_since_ns.store(0, Relaxed);
    }

    pub(crate) fn took(&self, stage: Stage, time: Duration) {
        let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.stages_us[stage as usize].fetch_add(us, Relaxed);
        let bucket = us.max(1).next_power_of_two().trailing_zeros() as usize;
        self.stages[stage as usize][bucket.min(BUCKET_COUNT - 1)].fetch_add(1, Relaxed);
    }

    /// Records that the server cannot be reached.
    pub(crate) fn out_of_reach(&self) {
        let now_ns = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX).max(1);
        if self.outage_since_ns.compare_exchange(0, now_ns, Relaxed, Relaxed).is_ok() {
            self.outages.fetch_add(1, Relaxed);
        }
    }

    pub(crate) fn count(&self, event: Event) {
        self.events[event as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn snapshot(&self) -> RemoteCounts {
        let outage_ms = match self.outage_since_ns.load(Relaxed) {
            0 => None,
            since_ns => Some(self.began.elapsed().saturating_sub(Duration::from_nanos(since_ns)).as_millis() as u64),
        };
        let cause = |cause: &Cause| CauseCounts {
            cause: cause.name().to_owned(),
            requests: self.requests[cause.index()].load(Relaxed),
            bytes: self.bytes[cause.index()].load(Relaxed),
        };
        let names = ["resolve", "queue", "first-byte", "transfer"];
        let stage = |(index, name): (usize, &str)| StageCounts {
            stage: name.to_owned(),
            total_us: self.stages_us[index].load(Relaxed),
            buckets: self.stages[index].iter().map(|bucket| bucket.load(Relaxed)).collect(),
        };
        let count = |event: Event| self.events[event as usize].load(Relaxed);
        RemoteCounts {
            causes: Cause::ALL.iter().map(cause).collect(),
            retries: count(Event::Retried),
            throttled: count(Event::Throttled),
            resolved_again: count(Event::ResolvedAgain),
            preempted: count(Event::Preempted),
            wrong: count(Event::Wrong),
            failed: count(Event::Failed),
            outages: self.outages.load(Relaxed),
            outage_ms,
            stages: names.into_iter().enumerate().map(stage).collect(),
        }
    }
}
