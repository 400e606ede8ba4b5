//! The report about a mount.
//!
//! It is also the JSON of `floe status --json`. While [`SCHEMA`] stays the same, fields may be added, but existing
//! fields keep their names and meanings.

use std::collections::BTreeMap;

use floe::remote::ImageCounts;
use serde::{Deserialize, Serialize};

use super::MetricObjects;
use crate::{front::FrontReport, launch::LaunchReport, options::ShownOption, transport::TransportReport};

/// The version of the fields.
pub const SCHEMA: u32 = 3;

/// The report about a mount. Counters start when it is mounted.
#[derive(Clone, Serialize, Deserialize, Debug)]
pub struct Report {
    /// The version of the fields.
    pub schema: u32,
    pub(crate) version: String,
    pub(crate) process: u32,
    pub(crate) uptime_seconds: f64,
    /// The mountpoint: absolute and without links.
    pub mountpoint: String,
    /// The device number of the mount's files: "0:57".
    pub device: String,
    /// The mounted image.
    pub image: ImageReport,
    /// Whether the kernel's EROFS is in front.
    #[serde(default)]
    pub(crate) front: FrontReport,
    /// How requests come from the kernel.
    #[serde(default)]
    pub(crate) transport: TransportReport,
    /// The launch that is replayed or recorded.
    #[serde(default)]
    pub(crate) launch: LaunchReport,
    pub(crate) options: Vec<ShownOption>,
    /// The location and the statistics of a remote image.
    #[serde(default)]
    pub(crate) remote: Option<RemoteReport>,
    /// The kernel's restrictions on the process.
    #[serde(default)]
    pub(crate) sandbox: SandboxReport,
    pub(crate) threads: Vec<ThreadReport>,
    /// How often real-time throttling stopped a thread.
    pub(crate) real_time_throttled: u64,
    /// Requests of the kernel by kind.
    pub(crate) requests: BTreeMap<String, u64>,
    /// Requests that failed because of the image, its source or a lack of memory, by reason.
    pub(crate) faults: BTreeMap<String, u64>,
    /// The latency of each stage of a read, in order.
    pub(crate) latency: Vec<LatencyReport>,
    /// What the engine counts.
    #[serde(flatten)]
    pub(crate) metrics: MetricObjects,
}

/// The kernel's restrictions on the serving process: each is `enforced`, `unavailable` or `off`.
#[derive(Clone, Serialize, Deserialize, Debug, Default)]
pub(crate) struct SandboxReport {
    pub(crate) landlock: String,
    /// The ABI version of the kernel's Landlock; 0 without Landlock.
    pub(crate) landlock_abi: u32,
    pub(crate) seccomp: String,
    pub(crate) no_new_privs: String,
    /// The capabilities that the process has.
    pub(crate) capabilities: Vec<String>,
}

#[derive(Clone, Serialize, Deserialize, Debug)]
pub struct ImageReport {
    /// Its path, with the escapes of JSON, or its URL without credentials.
    pub path: String,
    pub(crate) format: String,
    /// Where it begins in the file.
    pub offset_bytes: u64,
    pub(crate) devices: Vec<String>,
}

#[derive(Clone, Serialize, Deserialize, Debug)]
pub(crate) struct RemoteReport {
    /// The URL, with tags resolved to digests and without credentials.
    pub(crate) name: String,
    pub(crate) len_bytes: u64,
    /// The root of trust for verification; `None` if bytes are not verified.
    pub(crate) verified_by: Option<String>,
    /// `None` if the fetching process has ended.
    pub(crate) counts: Option<ImageCounts>,
}

#[derive(Clone, Serialize, Deserialize, Debug)]
pub(crate) struct ThreadReport {
    pub(crate) name: String,
    /// The CPU to which the thread is pinned.
    pub(crate) cpu: Option<usize>,
    pub(crate) priority_asked: String,
    pub(crate) priority_got: String,
    pub(crate) tasks: u64,
    /// How often the thread dropped its real-time priority because it had worked too long.
    pub(crate) yielded: u64,
    pub(crate) throttled: u64,
}

#[derive(Clone, Serialize, Deserialize, Debug)]
pub(crate) struct LatencyReport {
    /// The stage: queue_wait, pages, fetch, decode, reply, or read for the whole read.
    pub(crate) stage: String,
    pub(crate) count: u64,
    pub(crate) total_ns: u64,
    pub(crate) mean_ns: f64,
    pub(crate) p50_ns: u64,
    pub(crate) p99_ns: u64,
    pub(crate) p999_ns: u64,
    pub(crate) max_ns: u64,
    /// Cumulative counts for each upper bound.
    pub(crate) buckets: Vec<BucketReport>,
}

#[derive(Clone, Serialize, Deserialize, Debug)]
pub(crate) struct BucketReport {
    pub(crate) up_to_ns: u64,
    pub(crate) count: u64,
}
